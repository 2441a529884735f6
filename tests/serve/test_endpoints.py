"""Endpoints: what the description of the interface says is what they read, and the other way round."""

import ast
import io
from pathlib import Path

import pytest
from served import EchoModels
from starlette.datastructures import UploadFile

from seq2seq.serve import api, deepl
from seq2seq.serve.api import Api, Settings
from seq2seq.serve.deepl import DeepLApi
from seq2seq.serve.documentation import specification
from seq2seq.serve.endpoints import KeyParameters, Parameters, validated
from seq2seq.serve.errors import ApiError
from seq2seq.serve.limits import Limits
from seq2seq.serve.service import Service


@pytest.fixture(scope="module")
def endpoints():
    service = Service(EchoModels())
    own = Api(service, Limits(), Settings())
    yield [*own.endpoints(), *DeepLApi(own).endpoints()]
    service.scheduler.close()


def described(operation):
    """Return the JSON schemas of the parameters of an operation, by name, and the names of the required ones."""
    found = {one["name"]: one["schema"] for one in operation["parameters"] if one["in"] == "query"}
    required = {one["name"] for one in operation["parameters"] if one["in"] == "query" and one["required"]}
    for content in operation.get("requestBody", {"content": {}})["content"].values():
        found |= content["schema"]["properties"]
        required |= set(content["schema"].get("required", ()))
    return found, required


def operations(endpoints):
    """Yield each endpoint with the description of each of its methods."""
    paths = specification("http://a", endpoints)["paths"]
    for endpoint in endpoints:
        for method in endpoint.methods.lower().split():
            yield endpoint, paths[endpoint.path][method]


VALID = {"file": UploadFile(io.BytesIO(b"a"), filename="a.txt"),
         "dictionaries": [{"source_lang": "de", "target_lang": "en", "entries": "a\tb"}]}


def test_every_parameter_in_the_description_is_checked_under_its_name(endpoints):
    checked = 0
    for endpoint, operation in operations(endpoints):
        properties, required = described(operation)
        valid = {name: VALID.get(name, "a") for name in required}
        validated(endpoint.parameters, valid)
        for name in properties:
            model = KeyParameters if name in KeyParameters.model_fields else endpoint.parameters
            with pytest.raises(ApiError, match=rf"\b{name}\b") as error:
                validated(model, valid | {name: {"a": 1}})
            assert error.value.status == 400
            if name in required:
                for empty in ("", None):
                    with pytest.raises(ApiError, match=f"missing {name} parameter"):
                        validated(model, valid | {name: empty})
            checked += 1
    assert checked > 100


def test_every_parameter_that_an_endpoint_reads_is_in_the_description_with_a_text(endpoints):
    for endpoint, operation in operations(endpoints):
        properties, required = described(operation)
        keys = set() if endpoint.access == "open" else set(KeyParameters.model_fields)
        assert set(properties) == set(endpoint.parameters.model_fields) | keys, endpoint.path
        assert required == {name for name, field in endpoint.parameters.model_fields.items() if field.is_required()}
        assert all(one["description"] for one in properties.values()) and operation["summary"]


def test_endpoints_read_nothing_but_their_models_and_everything_of_them(endpoints):
    trees = [ast.parse(Path(module.__file__).read_text(encoding="utf-8")) for module in (api, deepl)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assert sum(isinstance(node, ast.Name) and node.id == "read_parameters" for node in nodes) == 1      # in `Api.route`
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and
            node.value.id in ("asked", "one", "self", "keys")}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}                            # of `getattr`
    for endpoint in endpoints:
        schema = endpoint.parameters.model_json_schema()
        for model in (schema, *schema.get("$defs", {}).values()):
            for name, one in model.get("properties", {}).items():
                assert name in read or one["description"] in ("Without effect.", "Not supported."), name


def test_parameters_that_may_be_repeated_are_lists_in_the_description(endpoints):
    lists = {(endpoint.path, name) for endpoint in endpoints for name in endpoint.parameters.lists()}
    assert {("/translate", "q"), ("/v2/translate", "text"), ("/v2/translate", "ignore_tags")} <= lists
    for endpoint, operation in operations(endpoints):
        for name, schema in described(operation)[0].items():
            assert ((endpoint.path, name) in lists) is ("oneOf" in schema)


def test_a_request_costs_as_much_as_it_has_texts(endpoints):
    models = {endpoint.path: endpoint.parameters for endpoint in endpoints}
    languages = {"source": "de", "target": "en", "target_lang": "en"}
    for path, name in (("/translate", "q"), ("/v2/translate", "text"), ("/detect", "q")):
        for texts, cost in (("a", 1), (["a"], 1), (["a"] * 7, 7)):
            assert validated(models[path], {**languages, name: texts}).cost == cost
    assert Parameters().cost == 1
    assert validated(models["/v2/translate"], {**languages, "text": "a", "ignore_tags": "x,y,z"}).cost == 1


def test_names_come_as_a_list_or_separated_by_commas(endpoints):
    model, = (endpoint.parameters for endpoint in endpoints if endpoint.path == "/v2/translate")
    for names in ("a, b", ["a", "b"], ["a,b", " "]):
        assert validated(model, {"text": "a", "target_lang": "en", "ignore_tags": names}).ignore_tags == {"a", "b"}
