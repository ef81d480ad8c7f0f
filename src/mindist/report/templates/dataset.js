"use strict";
(() => {
  const table = document.getElementById("observations");
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
    said.textContent = `${shown.length} of ${rows.length} ${controls.dataset.what} shown, by ${name}, ` +
      (down ? "highest first." : "lowest first.");
  };

  const addButton = (cell, pressed) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    button.addEventListener("click", pressed);
    cell.replaceChildren(button);
    return button;
  };

  heads.forEach((head, i) => addButton(head, () => {
    down = i === column ? !down : true;
    column = i;
    show();
  }));

  rows.forEach((row) => {
    const cell = row.cells[0];
    const mark = byId("data-obs-" + cell.textContent);
    if (!mark) return;
    const button = addButton(cell, () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      mark.classList.toggle("lit", on);
      if (on) mark.parentNode.appendChild(mark);
    });
    button.title = "Show in the figure";
    button.setAttribute("aria-pressed", "false");
  });

  only.addEventListener("change", show);
  more.addEventListener("click", () => { every = !every; show(); });
  only.checked = !only.disabled;
  controls.hidden = false;
  show();
})();
