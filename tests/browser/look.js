// What a reader would stumble over in the page that is shown: an array of sentences. The window is as high as the page.
(() => {
  const problems = [];
  const root = document.documentElement;
  const kSlack = 1.5;  // pixels: a glyph's box is a little larger than its ink

  const channels = color => {
    const parts = (color.match(/[\d.]+/g) || []).map(Number);
    return parts.length < 3 ? null : {rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1};
  };
  const over = (top, below) => top.rgb.map((value, i) => value * top.alpha + below[i] * (1 - top.alpha));
  const luminance = rgb => {
    const [r, g, b] = rgb.map(value => value / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };

  const isDrawing = element => element instanceof SVGElement;
  // What an element paints over its own area, if it hides what is below.
  const paintOf = element => {
    const style = getComputedStyle(element);
    const text = !isDrawing(element) || element.tagName === 'svg' ? style.backgroundColor
      : ['text', 'tspan', 'g', 'title'].includes(element.tagName) ? '' : style.fill;
    const color = channels(text);
    if (!color) return null;
    color.alpha *= Number(style.opacity) * (isDrawing(element) && element.tagName !== 'svg' ? Number(style.fillOpacity) : 1);
    return color.alpha > 0 ? color : null;
  };
  const groundAt = (x, y, element) => {
    const style = getComputedStyle(element);
    if (isDrawing(element) && style.paintOrder.startsWith('stroke') && parseFloat(style.strokeWidth) >= 3)
      return channels(style.stroke).rgb;  // a border around each letter
    const layers = [];
    for (const below of document.elementsFromPoint(x, y)) {
      const paint = paintOf(below);
      if (paint) layers.push(paint);
      if (paint && paint.alpha >= 1) break;
    }
    const paper = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
    return layers.reverse().reduce((ground, layer) => over(layer, ground), paper);
  };

  const check = (node, element, rect) => {
    const words = JSON.stringify(node.data.trim().slice(0, 40));
    if (rect.left < -kSlack || rect.right > innerWidth + kSlack) problems.push(`${words} leaves the window`);
    for (let outer = element; outer && outer !== root; outer = outer.parentElement) {
      const style = getComputedStyle(outer);
      const clips = outer.tagName === 'svg' || style.overflowX === 'hidden' || style.overflowY === 'hidden';
      if (!clips) continue;
      const box = outer.getBoundingClientRect();
      if (rect.left < box.left - kSlack || rect.right > box.right + kSlack || rect.top < box.top - kSlack - 1 ||
          rect.bottom > box.bottom + kSlack + 1)
        problems.push(`${words} is cut off by its ${outer.tagName.toLowerCase()}`);
    }
    const style = getComputedStyle(element);
    const ink = channels(isDrawing(element) ? style.fill : style.color);
    const ground = groundAt((rect.left + rect.right) / 2, (rect.top + rect.bottom) / 2, element);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const got = contrast(over(ink, ground), ground);
    if (got < (isLarge ? 3 : 4.5)) problems.push(`${words}: contrast ${got.toFixed(2)} (${style.fill} ${style.color} on ${ground})`);
  };

  const drawn = new Map();  // of each drawing: its words and where they stand
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  let count = 0;
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || ['STYLE', 'SCRIPT', 'TITLE', 'style', 'title'].includes(element.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      if (rect.width < 1 || rect.height < 1) continue;
      ++count;
      check(node, element, rect);
      const svg = element.closest('svg');
      if (svg) drawn.set(svg, [...(drawn.get(svg) || []), [node.data.trim(), rect]]);
    }
  }
  for (const texts of drawn.values()) {
    texts.forEach(([words, a], i) => texts.slice(i + 1).forEach(([others, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 5) problems.push(`"${words}" and "${others}" stand on each other`);
    }));
  }
  if (root.scrollWidth > innerWidth) problems.push(`the page is ${root.scrollWidth} wide, the window ${innerWidth}`);
  if (count < 5) problems.push(`only ${count} texts are shown`);

  // Of each curve that is shown: which chart, which name, how many points, and whether all lie within its axes.
  const curves = [];
  for (const path of document.querySelectorAll('svg.chart path[data-name]')) {
    const svg = path.closest('svg');
    if (svg.getBoundingClientRect().width < 1) continue;
    const points = path.getAttribute('d').slice(1).split(/[ML]/).map(point => point.split(' ').map(Number));
    const {left, right, top, bottom} = svg.dataset;
    const inside = points.every(([x, y]) => x >= left - 1 && x <= +right + 1 && y >= top - 1 && y <= +bottom + 1);
    curves.push({chart: svg.getAttribute('aria-label'), name: path.dataset.name, points: points.length, inside});
  }
  return {problems, curves};
})()
