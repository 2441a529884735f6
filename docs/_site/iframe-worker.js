// A page that is opened as a file cannot start a worker. The script of the search then runs in a hidden frame.
class FrameWorker extends EventTarget {
  constructor(address) {
    super()
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    document.body.append(this.frame)
    this.inside = this.frame.contentWindow
    const load = source => new Promise((resolve, reject) => {
      const script = this.frame.contentDocument.createElement("script")
      Object.assign(script, { src: source, onload: resolve, onerror: reject })
      this.frame.contentDocument.body.append(script)
    })
    this.inside.importScripts = async (...sources) => { for (const source of sources) await load(source) }
    this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
    this.started = load(address)
  }

  postMessage(data) {
    this.started.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
  }

  terminate() { this.frame.remove() }
}
if (location.protocol === "file:") window.Worker = FrameWorker
