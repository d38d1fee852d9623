"use strict";
// Draws the charts, and unfolds everything for print.
(() => {
  const { config, specs, drawn } = JSON.parse(document.getElementById("charts").textContent);
  // The page has its own legends, one for all charts of a figure.
  const embedding = { actions: false, mode: "vega-lite", renderer: "svg", config: { ...config, legend: { disable: true } } };
  const waiting = new Set(Object.keys(drawn));

  async function draw(id) {
    if (!waiting.delete(id)) return;
    const { spec, rows } = drawn[id];
    const filled = { ...specs[spec], data: { values: rows } };
    await vegaEmbed(document.getElementById(id), filled, embedding);
  }

  // What is on the screen comes first, the rest when there is time: a print then finds every chart.
  const onScreen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      onScreen.unobserve(entry.target);
      draw(entry.target.id);
    }
  }, { rootMargin: "400px" });
  for (const id of waiting) onScreen.observe(document.getElementById(id));

  async function drawTheRest() {
    for (const id of [...waiting]) {
      await new Promise((resolve) => setTimeout(resolve));
      await draw(id);
    }
    document.documentElement.dataset.charts = "drawn";
  }
  drawTheRest();

  const folded = new Set();
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.open = true;
      folded.add(details);
    }
  });
  window.addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
    folded.clear();
  });
})();
