// Sortable tables: a click or Enter on a header's button sorts by that column; aria-sort tells which and how.
(() => {
  "use strict";
  function key(row, column) {
    const cell = row.cells[column];
    const raw = cell.dataset.value !== undefined ? cell.dataset.value : cell.textContent.trim();
    if (raw === "") return null;
    const number = Number(raw);
    return Number.isNaN(number) ? raw.toLowerCase() : number;
  }
  function compare(a, b) {
    if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
    return typeof a === "number" ? -1 : 1;
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = Array.from(table.tHead.rows[table.tHead.rows.length - 1].cells);
    headers.forEach((header, column) => {
      const button = header.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const falling = header.getAttribute("aria-sort") === "ascending";
        for (const other of headers) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
        header.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const rows = Array.from(table.tBodies[0].rows).map((row) => [key(row, column), row]);
        rows.sort(([a], [b]) => a === null ? (b === null ? 0 : 1) : b === null ? -1 : (falling ? -1 : 1) * compare(a, b));
        table.tBodies[0].append(...rows.map(([, row]) => row));  // rows without a value stay last
      });
    });
  }
  const only = document.getElementById("only-differences");
  if (only) {
    const apply = () => document.getElementById("config-table").classList.toggle("only-differences", only.checked);
    only.addEventListener("change", apply);
    apply();
  }
})();
