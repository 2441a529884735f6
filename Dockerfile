# Translation server for CPUs.
#
#     docker build -t seq2seq .
#     docker run -p 127.0.0.1:5000:5000 -v ./models:/models:ro seq2seq /models/de_en
#
# Options of `seq2seq serve` follow the models. Other commands:
#     docker run -i -v ./models:/models:ro --entrypoint seq2seq seq2seq translate /models/de_en < text.de > text.en
#
# The image has only the packages of runtime.txt, without PyTorch: models that the kernels do not support (`seq2seq
# translate` says so), bf16, and training need it. Add it to the second pip command below.

FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv g++
WORKDIR /source
COPY pyproject.toml setup.py constraints.txt runtime.txt README.md LICENSE ./
COPY configs configs
COPY seq2seq seq2seq
RUN python3 -m venv /opt/seq2seq \
    && /opt/seq2seq/bin/pip install --no-cache-dir --no-deps . \
    && /opt/seq2seq/bin/pip install --no-cache-dir --constraint constraints.txt \
        -r runtime.txt lingua-language-detector zstandard

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home seq2seq
COPY --from=build /opt/seq2seq /opt/seq2seq
ENV PATH=/opt/seq2seq/bin:$PATH
USER seq2seq
WORKDIR /home/seq2seq
EXPOSE 5000
HEALTHCHECK CMD ["python3", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5000/health', timeout=5)"]
ENTRYPOINT ["seq2seq", "serve", "--host", "0.0.0.0"]
