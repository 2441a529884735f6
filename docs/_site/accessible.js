// Names the search dialog and the bars of code blocks, lets the keyboard scroll wide code, tables and formulas, and lets the copy buttons of console
// blocks copy what is typed: the lines behind `$ ` and their continuations, no output. The theme copies `data-copy`.
document$.subscribe(() => setTimeout(() => {
  document.querySelector(".md-search").setAttribute("aria-label", "Search")
  document.querySelectorAll(".md-code__nav").forEach((bar, index) => bar.setAttribute("aria-label", `Code ${index + 1}`))
  for (const area of document.querySelectorAll("pre > code, math, .md-typeset__scrollwrap"))
    if (area.scrollWidth > area.clientWidth) area.tabIndex = 0
  for (const block of document.querySelectorAll(".language-console")) {
    let inside = false
    block.dataset.copy = block.querySelector("code").textContent.split("\n").filter(line => {
      const typed = inside || line.startsWith("$ ")
      inside = typed && line.endsWith("\\")
      return typed
    }).map(line => line.replace(/^\$ /, "")).join("\n")
  }
}))
