"""Pictures: attention as a page for the browser and as PNG, learning curves as SVG."""
