"""The script and the style that only the report on a dataset has."""

SCRIPT = """
"use strict";
(() => {
  const table = document.getElementById("observations");
  if (!table) return;
  const byId = (id) => document.getElementById(id);
  const [controls, only, more, said] = ["controls", "only", "more", "said"].map(byId);
  const body = table.tBodies[0], rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const few = Number(controls.dataset.few);
  let column = heads.findIndex((head) => head.hasAttribute("aria-sort"));
  let down = true, every = false;

  const value = (row) => Number(row.cells[column].dataset.v);
  const show = () => {
    const kept = rows.filter((row) => !only.checked || row.classList.contains("strange"));
    kept.sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)));
    const shown = every ? kept : kept.slice(0, few);
    body.replaceChildren(...shown);
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    more.hidden = kept.length <= few;
    more.textContent = every ? `Show ${few} rows` : `Show all ${kept.length} rows`;
    const name = heads[column].textContent.trim().toLowerCase();
    said.textContent = `${shown.length} of ${rows.length} observations shown, by ${name}, ` +
      (down ? "highest first." : "lowest first.");
  };

  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => {
      down = i === column ? !down : true;
      column = i;
      show();
    });
    head.replaceChildren(button);
  });

  rows.forEach((row) => {
    const cell = row.cells[0];
    const mark = byId("data-obs-" + cell.textContent);
    if (!mark) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    button.title = "Show in the figure";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      mark.classList.toggle("lit", on);
      if (on) mark.parentNode.appendChild(mark);
    });
    row.addEventListener("mouseenter", () => mark.classList.add("near"));
    row.addEventListener("mouseleave", () => mark.classList.remove("near"));
    cell.replaceChildren(button);
  });

  only.addEventListener("change", show);
  more.addEventListener("click", () => { every = !every; show(); });
  only.checked = !only.disabled;
  controls.hidden = false;
  show();
})();
"""

STYLE = """
.verdict { font-size: 1.05rem; }
.verdict strong { display: block; font-size: 1.2rem; margin-bottom: .25rem; }
.verdict.strange { border-color: var(--observed); }
#controls { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; align-items: center; }
#controls[hidden] { display: none; }
label { display: inline-flex; gap: .45rem; align-items: center; min-height: 1.75rem; }
input[type=checkbox] { width: 1.15rem; height: 1.15rem; accent-color: var(--mark); margin: 0; }
button { font: inherit; color: var(--link); background: var(--back); cursor: pointer;
  border: 1px solid var(--line); border-radius: .4rem; padding: .2rem .7rem; }
button:hover { background: var(--soft); }
button:focus-visible, input:focus-visible { outline: 3px solid var(--mark); outline-offset: 2px; }
th[scope=row] { font-weight: 500; white-space: normal; overflow-wrap: anywhere; min-width: 4.5rem; }
.panels > div { min-width: 0; }
#observations { width: 100%; max-width: 48rem; font-size: .875rem; }
#observations th:first-child { text-align: right; min-width: 0; width: 4.5rem; }
#observations thead th { padding: 0; }
#observations thead button { border: 0; border-radius: 0; font-weight: 600; padding: .4rem .5rem;
  color: inherit; width: 100%; text-align: right; background: none; }
#observations thead button::after { content: "\\a0\\2195"; color: var(--quiet); }
#observations [aria-sort=descending] button::after { content: "\\a0\\2193"; color: var(--mark); }
#observations [aria-sort=ascending] button::after { content: "\\a0\\2191"; color: var(--mark); }
#observations tbody button { padding: 0 .5rem; font-variant-numeric: tabular-nums;
  min-width: 3rem; text-align: right; }
#observations button[aria-pressed=true] { background: var(--mark); color: var(--back); }
#observations .strange td:last-child { color: var(--observed); font-weight: 600; }
.lit > path, .near > path { stroke: var(--text) !important; stroke-width: 3 !important;
  stroke-opacity: 1 !important; }
.lit use, .near use { stroke: var(--text) !important; fill: var(--text) !important;
  stroke-width: 5 !important; }
@media (max-width: 40rem) {
  th, td { padding: .3rem .25rem; }
  thead th, #observations thead button { white-space: normal; padding: .4rem .2rem; }
  td { white-space: normal; }
  #observations { font-size: .8125rem; }
  #observations th:first-child { width: 3rem; }
  #observations th:not([aria-sort]) button::after { content: ""; }
  #observations tbody button { min-width: 2.4rem; padding: 0 .3rem; }
}
@media print {
  #controls, #said { display: none; }
  button { border: 0; color: inherit; }
  #observations { font-size: 8pt; }
  #observations thead button::after { content: "" !important; }
}
"""

__all__ = ["SCRIPT", "STYLE"]
