() => {
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || element.closest("option, noscript, script")) continue;
    let behind = element, back = [0, 0, 0, 0];
    while (behind && back[3] === 0) { back = parse(getComputedStyle(behind).backgroundColor); behind = behind.parentElement; }
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5 && parseFloat(getComputedStyle(element).fontSize) > 0) poor.push(`${ratio.toFixed(2)} ${node.data.trim().slice(0, 40)}`);
  }
  return poor;
}
