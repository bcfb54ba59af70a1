// Draws the figures, and again in other colours when the scheme changes. Colours are names of style variables.
(function () {
  const root = document.documentElement;
  const button = document.getElementById("scheme");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  // A finger on a chart should move the page, not a box.
  const touch = matchMedia("(pointer: coarse)").matches;

  function coloured(value, style) {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((each) => coloured(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each, style)]));
  }

  function draw() {
    const style = getComputedStyle(root);
    const drawn = Object.entries(figures).map(([name, figure]) => {
      const { data, layout } = coloured(figure, style);
      layout.dragmode = touch ? false : "zoom";
      return Plotly.react("chart-" + name, data, layout, config);
    });
    Promise.all(drawn).then(() => { root.dataset.drawn = root.dataset.scheme; });  // for who waits for it
    button.textContent = root.dataset.scheme === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", "switch to " + button.textContent + " colours");
  }

  function change(scheme) {
    root.dataset.scheme = scheme;
    draw();
  }

  button.addEventListener("click", () => {
    const scheme = root.dataset.scheme === "dark" ? "light" : "dark";
    try { localStorage.setItem("thinwire-scheme", scheme); } catch (error) { /* then it is not kept */ }
    change(scheme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => change(event.matches ? "dark" : "light"));
  draw();
})();
