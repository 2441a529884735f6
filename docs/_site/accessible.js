// Names the search dialog, and lets the keyboard scroll wide code, tables and formulas.
document$.subscribe(() => setTimeout(() => {
  document.querySelector(".md-search").setAttribute("aria-label", "Search")
  for (const area of document.querySelectorAll("pre > code, math, .md-typeset__scrollwrap"))
    if (area.scrollWidth > area.clientWidth) area.tabIndex = 0
}))
