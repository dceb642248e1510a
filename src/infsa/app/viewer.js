// <infsa-viewer key width height patch rows columns>: an image in tiles with its map over it.
// Drag or arrow keys move, wheel, pinch or + and - zoom, 0 shows the whole image.
(() => {
  const SIDE = 256, KEPT = 400;
  class Viewer extends HTMLElement {
    connectedCallback() {
      const number = name => Number(this.getAttribute(name));
      this.w = number("width"); this.h = number("height");
      const patch = number("patch");
      this.layers = [{name: "image", unit: 1, w: this.w, h: this.h},
                     {name: "map", unit: patch, w: number("columns"), h: number("rows")}];
      for (const layer of this.layers)
        layer.top = Math.max(0, Math.ceil(Math.log2(Math.max(layer.w, layer.h) / SIDE)));
      this.innerHTML = `<canvas tabindex="0" role="application" aria-label="Streamed image: drag or arrow keys move,
        wheel or plus and minus zoom, 0 shows the whole image"></canvas><div class="bar">
        <button type="button" aria-label="Zoom in">+</button><button type="button" aria-label="Zoom out">−</button>
        <button type="button">Whole image</button><label>Map opacity <input type="range" min="0" max="100" value="50">
        </label><span class="place" role="status"></span></div>`;
      this.canvas = this.querySelector("canvas");
      this.opacity = this.querySelector("input");
      this.tiles = new Map(); this.fingers = new Map();
      const [closer, farther, whole] = this.querySelectorAll("button");
      closer.onclick = () => this.zoom(2); farther.onclick = () => this.zoom(0.5); whole.onclick = () => this.fit();
      this.opacity.oninput = () => this.ask();
      this.canvas.onwheel = e => { e.preventDefault(); this.zoom(2 ** (-e.deltaY / 300), e.offsetX, e.offsetY); };
      this.canvas.ondblclick = e => this.zoom(2, e.offsetX, e.offsetY);
      this.canvas.onpointerdown = e => {
        this.canvas.setPointerCapture(e.pointerId); this.fingers.set(e.pointerId, [e.offsetX, e.offsetY]); };
      this.canvas.onpointermove = e => this.drag(e);
      this.canvas.onpointerup = this.canvas.onpointercancel = e => this.fingers.delete(e.pointerId);
      this.canvas.onkeydown = e => this.key(e);
      this.sized = new ResizeObserver(() => this.resize());
      this.sized.observe(this.canvas);
    }
    disconnectedCallback() { this.sized.disconnect(); }
    resize() {
      const box = this.canvas.getBoundingClientRect(), dots = devicePixelRatio || 1;
      if (!box.width) return;
      this.dots = dots; this.cw = box.width; this.ch = box.height;
      this.canvas.width = Math.round(box.width * dots); this.canvas.height = Math.round(box.height * dots);
      this.scale ? this.ask() : this.fit();
    }
    least() { return Math.min(this.cw / this.w, this.ch / this.h); }
    fit() { this.scale = this.least(); this.x = this.w / 2; this.y = this.h / 2; this.ask(); }
    zoom(by, px = this.cw / 2, py = this.ch / 2) {
      const next = Math.min(Math.max(this.scale * by, this.least()), Math.max(16, this.least()));
      this.x += (px - this.cw / 2) * (1 / this.scale - 1 / next);
      this.y += (py - this.ch / 2) * (1 / this.scale - 1 / next);
      this.scale = next; this.ask();
    }
    move(dx, dy) { this.x -= dx / this.scale; this.y -= dy / this.scale; this.ask(); }
    drag(e) {
      const old = this.fingers.get(e.pointerId);
      if (!old) return;
      const now = [e.offsetX, e.offsetY], other = [...this.fingers].find(([id]) => id !== e.pointerId);
      this.fingers.set(e.pointerId, now);
      if (!other) return this.move(now[0] - old[0], now[1] - old[1]);
      const far = p => Math.hypot(p[0] - other[1][0], p[1] - other[1][1]) || 1;
      this.zoom(far(now) / far(old), (now[0] + other[1][0]) / 2, (now[1] + other[1][1]) / 2);
    }
    key(e) {
      const step = 80, acts = {ArrowLeft: () => this.move(step, 0), ArrowRight: () => this.move(-step, 0),
        ArrowUp: () => this.move(0, step), ArrowDown: () => this.move(0, -step), "+": () => this.zoom(2),
        "=": () => this.zoom(2), "-": () => this.zoom(0.5), 0: () => this.fit(), Home: () => this.fit()};
      if (acts[e.key]) { e.preventDefault(); acts[e.key](); }
    }
    ask() { if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); }); }
    inside(at, length, seen) { return seen >= length ? length / 2 : Math.min(Math.max(at, seen / 2), length - seen / 2); }
    draw() {
      const seen = [this.cw / this.scale, this.ch / this.scale], c = this.canvas.getContext("2d");
      this.x = this.inside(this.x, this.w, seen[0]); this.y = this.inside(this.y, this.h, seen[1]);
      const left = this.x - seen[0] / 2, top = this.y - seen[1] / 2, s = this.scale * this.dots;
      c.setTransform(1, 0, 0, 1, 0, 0); c.clearRect(0, 0, this.canvas.width, this.canvas.height);
      c.save(); c.setTransform(s, 0, 0, s, -left * s, -top * s);
      c.beginPath(); c.rect(0, 0, this.w, this.h); c.clip();
      const box = [Math.max(0, left), Math.max(0, top), Math.min(this.w, left + seen[0]), Math.min(this.h, top + seen[1])];
      for (const layer of this.layers) {
        c.globalAlpha = layer.name === "map" ? this.opacity.value / 100 : 1;
        c.imageSmoothingEnabled = layer.name === "image" && s < 2;
        if (c.globalAlpha) this.layer(c, layer, box, s);
      }
      c.restore();
      const [l, t, r, b] = box.map(Math.round);
      this.querySelector(".place").textContent = `${r - l} × ${b - t} pixels at (${l}, ${t})`;
    }
    layer(c, layer, [l, t, r, b], s) {
      const best = Math.min(layer.top, Math.max(0, Math.floor(Math.log2(1 / (s * layer.unit)) + 0.01)));
      const first = layer.name === "map" ? best : layer.top;  // coarser tiles stand in for those on their way
      for (let z = first; z >= best; z--) {
        const step = SIDE * 2 ** z * layer.unit;
        for (let y = Math.floor(t / step); y * step < b; y++) for (let x = Math.floor(l / step); x * step < r; x++) {
          const image = this.tile(layer.name, z, x, y, z === best || z === layer.top), f = 2 ** z * layer.unit;
          if (image) c.drawImage(image, x * step, y * step, image.width * f, image.height * f);
        }
      }
    }
    tile(name, z, x, y, wanted) {
      const key = `${name}/${z}/${x}/${y}`, known = this.tiles.get(key);
      if (known) { this.tiles.delete(key); this.tiles.set(key, known); return known.ready ? known : null; }
      if (!wanted) return null;
      const image = new Image();
      image.onload = () => { image.ready = true; this.ask(); };
      image.src = `infsa/tiles/${this.getAttribute("key")}/${key}`;
      this.tiles.set(key, image);
      while (this.tiles.size > KEPT) this.tiles.delete(this.tiles.keys().next().value);
      return null;
    }
  }
  customElements.get("infsa-viewer") || customElements.define("infsa-viewer", Viewer);
})();
