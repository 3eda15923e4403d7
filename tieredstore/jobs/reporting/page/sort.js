"use strict";
// Pressing the head of a column sorts its table, pressing it again turns it round. Without scripts tables stay as they are.
const texts = new Intl.Collator(undefined, { numeric: true });

function keyOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : texts.compare(a, b);
}

function sortBy(table, head) {
  const column = head.cellIndex;
  const first = head.classList.contains("number") ? "descending" : "ascending";
  const other = first === "descending" ? "ascending" : "descending";
  const order = head.getAttribute("aria-sort") === first ? other : first;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const isNumber = head.classList.contains("number");
  // What is not known comes last, whichever way round.
  const isKnown = (row) => !isNumber || row.cells[column].dataset.key !== undefined;
  const rows = [...body.rows].sort((a, b) => {
    if (isKnown(a) !== isKnown(b)) return isKnown(a) ? -1 : 1;
    const found = compare(keyOf(a, column), keyOf(b, column));
    return order === "ascending" ? found : -found;
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(table, head));
    head.append(button);
  }
}
