() => [...document.querySelectorAll("button, input, select, textarea, a, summary, meter, progress")].filter((e) => {
  const label = e.labels?.length ? e.labels[0].innerText || e.labels[0].textContent : "";
  return !(e.getAttribute("aria-label") || e.title || e.textContent.trim() || label.trim());
}).map((e) => e.outerHTML.slice(0, 120))
