"use strict";
// Filters and sorts the table of numbers.
(() => {
  const table = document.getElementById("number-table");
  const body = table.tBodies[0];
  const filter = document.getElementById("number-filter");
  const { figure, differs, text, count } = filter.elements;
  const rows = [...body.rows].map((row) => ({ row, words: row.textContent.toLowerCase() }));

  function show() {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, words } of rows) {
      const fits =
        (!figure.value || row.dataset.figure === figure.value) &&
        (!differs.checked || row.dataset.agreement === "differs") &&
        wanted.every((word) => words.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    const all = rows.length.toLocaleString("en");
    count.textContent = shown === rows.length ? `${all} numbers` : `${shown.toLocaleString("en")} of ${all} numbers`;
  }
  filter.hidden = false;
  filter.addEventListener("input", show);
  filter.addEventListener("submit", (event) => event.preventDefault());
  for (const link of document.querySelectorAll("a[data-figure]")) {
    link.addEventListener("click", () => {
      figure.value = link.dataset.figure;
      show();
    });
  }

  const asNumber = (cell) => Number.parseFloat(cell.textContent.replace("−", "-").replace(/^[^\d.+-]+/, ""));

  function compare(column, isNumber) {
    return (a, b) => {
      const [left, right] = [a.cells[column], b.cells[column]];
      if (!isNumber) return left.textContent.localeCompare(right.textContent, "en");
      const [x, y] = [asNumber(left), asNumber(right)];
      return Number.isNaN(x) - Number.isNaN(y) || x - y || 0;
    };
  }

  // Rows without a number stay at the end in both directions.
  function sort(header) {
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const isNumber = header.classList.contains("n");
    const order = compare(header.cellIndex, isNumber);
    const without = (row) => isNumber && Number.isNaN(asNumber(row.cells[header.cellIndex]));
    const sorted = rows.map(({ row }) => row);
    sorted.sort((a, b) => without(a) - without(b) || (down ? -order(a, b) : order(a, b)));
    body.append(...sorted);
  }
  // Not button elements: browsers leave those out where a table's head is repeated on paper.
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("span");
    button.role = "button";
    button.tabIndex = 0;
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(header));
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(header);
    });
  }
})();
