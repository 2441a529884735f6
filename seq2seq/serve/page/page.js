// The translation page. All texts are inserted as text, never as HTML.

const DEBOUNCE = 300;                       // milliseconds without a key press before a request is sent
const RETRY = 2000;                         // milliseconds between attempts to reach the server
const BUSY_SECONDS = 5;                     // pause after status 429 without a Retry-After header
const UNSURE = 0.8, DOUBTFUL = 0.5;         // words with a lower confidence are marked
const RIGHT_TO_LEFT = new Set(["ar", "arc", "ckb", "dv", "fa", "he", "iw", "ks", "ps", "sd", "ug", "ur", "yi"]);

const byId = (id) => document.getElementById(id);
const store = {
  get(name) { try { return localStorage.getItem("seq2seq." + name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem("seq2seq." + name, value); } catch { /* storage is blocked */ } },
};

let texts = {}, languages = [], glossaries = [], settings = { charLimit: -1 };
let translation = "", words = [], alternatives = [], detected = "";
let running = null, timer = 0, retryTimer = 0, uploading = null;
let message = null, state = null, fileState = null;     // shown texts, each as [name, values] of say()

function say(name, values = {}) {
  const text = texts[byId("interface").value]?.[name] ?? (name === "unreachable" ? "The server cannot be reached." : "");
  return text.replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "");
}

function showMessage(name, values) {
  message = name ? [name, values] : null;
  byId("message").hidden = !name;
  byId("message").textContent = name ? (name === "error" ? values.error : say(name, values)) : "";
}

function showState(name) { state = name; byId("state").textContent = name ? say(name) : ""; }

function showFileState(name, values) {
  fileState = name ? [name, values] : null;
  byId("file-state").textContent = name ? (name === "error" ? values.error : say(name, values)) : "";
}

function applyInterface() {
  if (!texts.en) return;                                // the texts are not loaded yet; the page itself is in English
  const chosen = byId("interface").value;
  document.documentElement.lang = chosen;
  document.title = say("title");
  for (const one of document.querySelectorAll("[data-text]")) one.textContent = say(one.dataset.text);
  for (const one of document.querySelectorAll("[data-placeholder]")) one.placeholder = say(one.dataset.placeholder);
  for (const one of document.querySelectorAll("[data-label]")) {
    one.title = say(one.dataset.label);
    one.setAttribute("aria-label", one.title);
  }
  for (const one of document.querySelectorAll("#source option, #target option")) {
    one.textContent = one.value === "auto" ? say("detect") : languageName(one.value);
  }
  fillGlossaries();
  if (message) showMessage(...message);
  if (fileState) showFileState(...fileState);
  showState(state);
  showFormats();
  showCount();
  showDetected();
  showTranslation();
}

// Languages

function option(value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  return made;
}

/* The browser knows the names in the language of the interface. Codes that it does not know have the server's name. */
function languageName(code) {
  try {
    const name = new Intl.DisplayNames([byId("interface").value], { type: "language", fallback: "none" }).of(code);
    if (name) return name;
  } catch { /* not a code of BCP 47 */ }
  return languages.find((one) => one.code === code)?.name ?? code;
}

function fillSource() {
  const options = languages.map((one) => option(one.code, languageName(one.code)));
  byId("source").replaceChildren(option("auto", say("detect")), ...options);
}

function fillTargets(wanted) {
  const source = byId("source").value;
  const reachable = languages.find((one) => one.code === source)?.targets ?? languages.flatMap((one) => one.targets);
  const codes = [...new Set(reachable)].filter((code) => code !== source || reachable.length === 1);
  byId("target").replaceChildren(...codes.map((code) => option(code, languageName(code))));
  if (codes.includes(wanted)) byId("target").value = wanted;
}

/* Glossaries belong to a direction, so they are offered only if the source language is chosen. */
function fillGlossaries() {
  const source = byId("source").value, target = byId("target").value, chosen = byId("glossary").value;
  const found = glossaries.filter((one) => one.source === source && one.target === target);
  byId("glossary").replaceChildren(option("", say("noGlossary")), ...found.map((one) => option(one.id ?? one.name, one.name)));
  if (found.some((one) => (one.id ?? one.name) === chosen)) byId("glossary").value = chosen;
  byId("glossary-field").hidden = !found.length;
}

async function loadGlossaries() {
  const headers = byId("key").value ? { Authorization: `Bearer ${byId("key").value}` } : {};
  try { glossaries = await request("glossaries", { headers }); } catch { glossaries = []; }
  fillGlossaries();
}

function setDirection(element, code) {
  const parts = code.toLowerCase().split(/[-_]/);
  if (!code || code === "auto") {
    element.dir = "auto";
    element.removeAttribute("lang");
  } else {
    const right = RIGHT_TO_LEFT.has(parts[0]) ? !parts.includes("latn") : parts.includes("arab") || parts.includes("hebr");
    element.dir = right ? "rtl" : "ltr";
    element.lang = code;
  }
}

function languageChanged() {
  detected = "";
  store.set("source", byId("source").value);
  store.set("target", byId("target").value);
  fillGlossaries();
  showDetected();
  setDirection(byId("translation"), byId("target").value);
  setDirection(byId("alternatives"), byId("target").value);
}

function showDetected() {
  const automatic = byId("source").value === "auto";
  byId("detected").textContent = automatic && detected ? say("detected", { language: languageName(detected) }) : "";
  setDirection(byId("text"), automatic ? detected : byId("source").value);
  const source = automatic ? detected : byId("source").value, target = byId("target").value;
  byId("swap").disabled = !languages.find((one) => one.code === target)?.targets.includes(source);
}

function swap() {
  const source = byId("source").value === "auto" ? detected : byId("source").value;
  const target = byId("target").value;
  byId("source").value = target;
  fillTargets(source);
  if (translation) byId("text").value = translation;
  clearTranslation();
  languageChanged();
  showCount();
  schedule(0);
}

// Results

function span(text, kind, title) {
  const made = document.createElement("span");
  made.textContent = text;
  if (kind) { made.className = kind; made.title = title; }
  return made;
}

function showTranslation() {
  const output = byId("translation"), marked = byId("confidence").checked, pieces = [], uncertain = [];
  let position = 0;
  for (const word of marked ? words : []) {
    const at = translation.indexOf(word.text, position);
    if (!word.text || at < 0) continue;
    if (at > position) pieces.push(document.createTextNode(translation.slice(position, at)));
    position = at + word.text.length;
    const percent = Math.round(100 * word.confidence) + " %";
    const kind = word.confidence < DOUBTFUL ? "doubtful" : word.confidence < UNSURE ? "unsure" : "";
    pieces.push(span(word.text, kind, percent));
    if (kind) uncertain.push(`\u2068${word.text}\u2069 (${percent})`);
  }
  pieces.push(document.createTextNode(translation.slice(position)));
  output.replaceChildren(...pieces);
  byId("legend").hidden = !marked;
  byId("uncertain").hidden = !marked || !words.length;
  byId("uncertain").textContent =
    uncertain.length ? say("uncertainWords", { words: uncertain.join(", ") }) : say("noUncertainWords");
  byId("copy").disabled = !translation;
  byId("alternatives-part").hidden = !alternatives.length;
  byId("alternatives").replaceChildren(...alternatives.map((text, index) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      [alternatives[index], translation] = [translation, text];
      words = [];                                       // the confidence belongs to the best translation
      showTranslation();
      byId("alternatives").querySelectorAll("button")[index].focus();
    });
    item.append(button);
    return item;
  }));
}

function clearTranslation() {
  [translation, words, alternatives] = ["", [], []];
  showState(null);
  showTranslation();
}

// Requests

class ServerError extends Error {
  constructor(status, text, seconds) { super(text); Object.assign(this, { status, seconds }); }
}

async function request(path, options = {}) {
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok || answer.error) {
    const seconds = Math.min(60, Number(response.headers.get("Retry-After")) || BUSY_SECONDS);
    throw new ServerError(response.status, answer.error ?? say("failed", { status: response.status }), seconds);
  }
  return answer;
}

function showError(error, again) {
  clearTimeout(retryTimer);
  if (!(error instanceof ServerError)) {
    showMessage("unreachable");
    retryTimer = setTimeout(again, RETRY);
  } else if (error.status === 429) {
    showMessage("busy", { error: error.message, seconds: error.seconds });
    retryTimer = setTimeout(again, 1000 * error.seconds);
  } else showMessage("error", { error: error.message });
}

function schedule(delay) {
  if (!languages.length) return;                        // connect() translates as soon as the server answers
  clearTimeout(timer);
  clearTimeout(retryTimer);
  running?.abort();
  running = null;
  byId("translation").setAttribute("aria-busy", "false");
  timer = setTimeout(translate, delay);
}

async function translate() {
  const text = byId("text").value, count = [...text].length, limit = settings.charLimit;
  if (!text.trim()) { detected = ""; showDetected(); clearTranslation(); showMessage(null); return; }
  if (limit >= 0 && count > limit) { clearTranslation(); showMessage("tooLong", { count, limit }); return; }
  const own = running = new AbortController();
  byId("translation").setAttribute("aria-busy", "true");
  showState("translating");
  const fields = { q: text, source: byId("source").value, target: byId("target").value, format: "text", alternatives: 3 };
  if (byId("confidence").checked) fields.confidence = true;
  if (byId("glossary").value) fields.glossary = byId("glossary").value;
  if (byId("key").value) fields.api_key = byId("key").value;
  try {
    const answer = await request("translate", { method: "POST", signal: own.signal, body: JSON.stringify(fields),
      headers: { "Content-Type": "application/json" } });
    if (own !== running) return;                        // a newer request has replaced this one
    translation = answer.translatedText;
    alternatives = answer.alternatives ?? [];
    words = answer.confidence ?? [];
    detected = answer.detectedLanguage?.language ?? "";
    showMessage(null);
    showDetected();
    showTranslation();
    showState(null);
  } catch (error) {
    if (own !== running) return;
    showState(null);
    showError(error, translate);
  }
  byId("translation").setAttribute("aria-busy", "false");
}

async function upload() {
  const file = byId("file").files[0];
  if (!file || uploading) return;
  const form = new FormData();
  form.append("file", file);
  form.append("source", byId("source").value);
  form.append("target", byId("target").value);
  if (byId("glossary").value) form.append("glossary", byId("glossary").value);
  if (byId("key").value) form.append("api_key", byId("key").value);
  uploading = true;
  byId("download").hidden = true;
  showFileState("translating");
  try {
    const answer = await request("translate_file", { method: "POST", body: form });
    // Only the file name of the URL is used: behind a proxy, the server may not know the host name of the page.
    byId("download").href = "download_file/" + new URL(answer.translatedFileUrl, location.href).pathname.split("/").pop();
    byId("download").hidden = false;
    showFileState("fileReady");
  } catch (error) {
    if (error instanceof ServerError) showFileState("error", { error: error.message });
    else showFileState("unreachable");
  }
  uploading = null;
}

async function copy() {
  try {
    await navigator.clipboard.writeText(translation);
    showState("copied");
  } catch {                                             // browsers offer the clipboard only to https and localhost
    const selection = getSelection();
    selection.selectAllChildren(byId("translation"));
    showState(document.execCommand("copy") ? "copied" : "notCopied");
  }
}

// Start

function showCount() {
  const count = [...byId("text").value].length, limit = settings.charLimit, over = limit >= 0 && count > limit;
  byId("counter").textContent = say(limit >= 0 ? "countLimit" : "count", { count, limit });
  byId("counter").classList.toggle("over", over);
  byId("text").setAttribute("aria-invalid", String(over));
}

function showFormats() {
  const formats = settings.supportedFilesFormat ?? [];
  byId("file-part").hidden = !settings.filesTranslation || !formats.length;
  byId("file").accept = formats.join(",");
  byId("formats").textContent = say("formats", { formats: formats.join(", ") });
}

async function connect() {
  try {
    texts = await request("page/texts.json");
    applyInterface();
    [settings, languages] = await Promise.all([request("frontend/settings"), request("languages")]);
  } catch (error) {
    showError(error, connect);
    return;
  }
  showMessage(null);
  byId("key-field").hidden = !settings.keyRequired;
  fillSource();
  const wanted = store.get("source") ?? settings.language?.source?.code;
  if (languages.some((one) => one.code === wanted)) byId("source").value = wanted;
  fillTargets(store.get("target") ?? settings.language?.target?.code);
  languageChanged();
  applyInterface();
  schedule(0);
  loadGlossaries();
}

function setTheme(name) { document.documentElement.dataset.theme = name; }

function start() {
  const wanted = (store.get("interface") ?? navigator.language).slice(0, 2);
  byId("interface").value = ["en", "de", "zh"].includes(wanted) ? wanted : "en";
  byId("theme").value = ["light", "dark"].includes(store.get("theme")) ? store.get("theme") : "system";
  byId("confidence").checked = store.get("confidence") === "true";
  setTheme(byId("theme").value);
  byId("theme").addEventListener("change", (event) => { setTheme(event.target.value); store.set("theme", event.target.value); });
  byId("interface").addEventListener("change", (event) => { store.set("interface", event.target.value); applyInterface(); });
  byId("source").addEventListener("change", () => { fillTargets(byId("target").value); languageChanged(); schedule(0); });
  byId("target").addEventListener("change", () => { languageChanged(); schedule(0); });
  byId("text").addEventListener("input", () => { showCount(); schedule(DEBOUNCE); });
  byId("key").addEventListener("input", () => schedule(DEBOUNCE));
  byId("key").addEventListener("change", loadGlossaries);
  byId("glossary").addEventListener("change", () => schedule(0));
  byId("confidence").addEventListener("change", (event) => {
    store.set("confidence", event.target.checked);
    showTranslation();
    if (event.target.checked) schedule(0);
  });
  byId("clear").addEventListener("click", () => { byId("text").value = ""; showCount(); schedule(0); byId("text").focus(); });
  byId("swap").addEventListener("click", swap);
  byId("copy").addEventListener("click", copy);
  byId("file").addEventListener("change", () => {
    byId("upload").disabled = !byId("file").files.length;
    byId("download").hidden = true;
    showFileState(null);
  });
  byId("upload").addEventListener("click", upload);
}

start();
connect();
