"use strict";

// Draws the charts and the table of a step from the data that page.py embeds. Times are in
// microseconds, sizes in bytes.

const unpack = async (text) => {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

const bytes = (n) => {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${(n / size).toFixed(n >= 100 * size ? 0 : n >= 10 * size ? 1 : 2)} ${unit}`;
  }
  return `${n} bytes`;
};
const time = (us) => (us >= 1e6 ? `${(us / 1e6).toFixed(2)} s` : `${(us / 1e3).toFixed(us < 1e4 ? 2 : 0)} ms`);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const element = (tag, text, parent) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
// Index of the last number that is not larger than value, or -1.
const lastUpTo = (sorted, value) => {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
};

// A canvas over a time interval. Dragging zooms in, Ctrl or Shift with the wheel zooms, a double
// click shows the whole interval again.
class View {
  constructor(canvas, end, draw, describe) {
    Object.assign(this, { canvas, end, draw, describe, from: 0, to: end, left: 64, right: 10 });
    this.tip = element("div", undefined, canvas.parentElement);
    this.tip.className = "tip";
    canvas.addEventListener("mousemove", (event) => this.point(event));
    canvas.addEventListener("mouseleave", () => this.leave());
    canvas.addEventListener("wheel", (event) => this.zoom(event), { passive: false });
    canvas.addEventListener("dblclick", () => this.show(0, this.end));
    canvas.addEventListener("mousedown", (event) => (this.grabbed = event.offsetX));
    canvas.addEventListener("mouseup", (event) => this.release(event.offsetX));
    new ResizeObserver(() => this.paint()).observe(canvas.parentElement);
  }

  show(from, to) {
    this.from = Math.max(0, from);
    this.to = Math.min(this.end, to);
    this.paint();
  }

  zoom(event) {
    if (!event.ctrlKey && !event.shiftKey) return; // let the page scroll
    event.preventDefault();
    const at = this.timeAt(event.offsetX);
    const factor = (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8;
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  release(x) {
    const [from, to] = [this.grabbed, x].sort((a, b) => a - b);
    this.grabbed = undefined;
    if (to - from > 5) this.show(this.timeAt(from), this.timeAt(to));
  }

  get width() {
    return this.canvas.clientWidth - this.left - this.right;
  }

  x(us) {
    return this.left + ((us - this.from) / (this.to - this.from || 1)) * this.width;
  }

  timeAt(x) {
    return this.from + ((x - this.left) / this.width) * (this.to - this.from);
  }

  paint(pointed) {
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (!width) return;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif";
    context.save();
    context.beginPath();
    context.rect(this.left, 0, this.width, height);
    this.draw(this, context, () => context.clip());
    context.restore();
    if (pointed !== undefined) {
      context.fillStyle = colour("faint");
      context.fillRect(pointed, 0, 1, height);
      if (this.grabbed !== undefined) {
        context.globalAlpha = 0.2;
        context.fillRect(this.grabbed, 0, pointed - this.grabbed, height);
      }
    }
  }

  point(event) {
    const at = this.timeAt(event.offsetX);
    if (at < this.from || at > this.to) return this.leave();
    this.paint(event.offsetX);
    this.tip.replaceChildren(...this.describe(at, event.offsetY));
    this.tip.style.display = "block";
    const free = this.canvas.clientWidth - this.tip.offsetWidth;
    const beside = event.offsetX + 14;
    this.tip.style.left = `${beside > free ? Math.max(event.offsetX - 14 - this.tip.offsetWidth, 0) : beside}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  leave() {
    this.grabbed = undefined;
    this.tip.style.display = "none";
    this.paint();
  }
}

// Whether a time is in an interval, which may wrap around the end of the step.
const within = ([from, to], at) => (from <= to ? from <= at && at < to : at >= from || at < to);

const line = (label, value) => {
  const made = element("div");
  element("b", value, made);
  made.append(` ${label}`);
  return made;
};

const axis = (view, context, height) => {
  context.fillStyle = colour("faint");
  const span = view.to - view.from;
  let step = 10 ** Math.floor(Math.log10(span / 5 || 1));
  for (const factor of [2.5, 2, 2]) if (span / step > Math.min(12, view.width / 64)) step *= factor;
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    context.textAlign = "center";
    context.fillText(time(at), Math.min(view.x(at), view.canvas.clientWidth - 24), height - 3);
  }
};

// Heights of the parts of the chart in pixels.
const LOAD = 260;
const ARCS = 120;
const COPIES = 46;
const OPS = 56;

const chart = (data) => {
  const { before, after, trips, stalls, ops, buffers } = data;
  const end = Math.max(data.step_us, data.unswapped_step_us);
  const top = 1.06 * Math.max(data.budget_bytes, data.peak_bytes, data.unswapped_peak_bytes);
  const y = (load) => 8 + (1 - load / top) * (LOAD - 8);
  const swappedOut = new Map();
  for (const trip of trips) {
    if (!swappedOut.has(trip.buffer)) swappedOut.set(trip.buffer, []);
    swappedOut.get(trip.buffer).push([trip.gone, trip.in_begin]);
  }

  const steps = (view, context, curve) => {
    context.beginPath();
    const first = Math.max(lastUpTo(curve.us, view.from), 0);
    context.moveTo(view.x(curve.us[first]), y(0));
    let last = y(0);
    for (let i = first; i < curve.us.length && curve.us[i] <= view.to; ++i) {
      const x = view.x(curve.us[i]);
      context.lineTo(x, last);
      last = y(curve.bytes[i]);
      context.lineTo(x, last);
    }
    context.lineTo(view.x(Math.min(curve.end, view.to)), last);
  };

  const beginOf = (trip) => (trip.out_begin < 0 ? trip.gone : trip.out_begin);
  const arc = (view, context, from, to) => {
    const [left, right] = [view.x(from), view.x(to)];
    if (right < view.left || left > view.left + view.width) return;
    const across = (right - left) / 2;
    const up = Math.min(ARCS - 12, 10 + across / 3);
    context.beginPath();
    context.ellipse(left + across, LOAD + ARCS - 4, across, up, 0, Math.PI, 2 * Math.PI);
    context.stroke();
  };
  const bar = (view, context, top, from, to) => {
    context.fillRect(view.x(from), top, Math.max(view.x(to) - view.x(from), 1), 14);
  };

  const draw = (view, context, clip) => {
    context.save();
    context.textAlign = "right";
    context.fillStyle = colour("faint");
    for (let part = 0; part <= 4; ++part) {
      const load = (top * part) / 4;
      context.fillText(bytes(Math.round(load)), view.left - 6, Math.max(y(load), 10) + 3);
      context.fillRect(view.left, y(load), view.width, 0.3);
    }
    for (const [label, at] of [["swaps", LOAD + ARCS / 2], ["copies out", LOAD + ARCS + 16], ["copies in", LOAD + ARCS + 36], ["ops", LOAD + ARCS + COPIES + 24]]) {
      context.fillText(label, view.left - 6, at);
    }
    axis(view, context, view.canvas.clientHeight);
    clip();
    context.fillStyle = colour("before");
    steps(view, context, before);
    context.lineTo(view.x(Math.min(before.end, view.to)), y(0));
    context.globalAlpha = 0.45;
    context.fill();
    context.globalAlpha = 1;
    steps(view, context, after);
    context.strokeStyle = colour("after");
    context.lineWidth = 1.5;
    context.stroke();
    context.strokeStyle = colour("budget");
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(view.left, y(data.budget_bytes));
    context.lineTo(view.left + view.width, y(data.budget_bytes));
    context.stroke();
    context.setLineDash([]);
    for (const trip of trips) {
      context.strokeStyle = context.fillStyle = colour(trip.tier);
      context.globalAlpha = 0.55;
      context.lineWidth = Math.max(0.6, Math.min(4, (6 * trip.bytes) / data.largest_trip_bytes));
      const [from, to] = [beginOf(trip), trip.in_end];
      if (from <= to) arc(view, context, from, to);
      else {
        arc(view, context, from, to + data.step_us);
        arc(view, context, from - data.step_us, to);
      }
      context.globalAlpha = 1;
      if (trip.out_begin >= 0) bar(view, context, LOAD + ARCS + 6, trip.out_begin, trip.out_end);
      bar(view, context, LOAD + ARCS + 26, trip.in_begin, trip.in_end);
    }
    const first = LOAD + ARCS + COPIES;
    const row = OPS / Math.max(data.rows, 4);
    context.fillStyle = colour("other");
    for (let i = 0; i < ops.begin.length; ++i) {
      const [from, to] = [view.x(ops.begin[i]), view.x(ops.end[i])];
      if (to < view.left || from > view.left + view.width) continue;
      context.fillRect(from, first + 4 + ops.row[i] * row, Math.max(to - from - 0.3, 0.4), Math.max(row - 1, 1));
    }
    context.fillStyle = colour("stall");
    for (const stall of stalls) {
      const from = view.x(stall.begin);
      const width = Math.max(view.x(stall.begin + stall.wait) - from, 1);
      context.globalAlpha = 0.25;
      context.fillRect(from, 8, width, LOAD + ARCS + COPIES - 8);
      context.globalAlpha = 1;
      context.fillRect(from, first + 4, width, OPS - 4);
    }
    context.restore();
  };

  const loadAt = (curve, at) => (at > curve.end ? 0 : curve.bytes[Math.max(lastUpTo(curve.us, at), 0)]);

  const describe = (at, height) => {
    const lines = [line("", time(at))];
    if (height > LOAD && height <= LOAD + ARCS + COPIES) {
      const largest = trips
        .filter((trip) => within([beginOf(trip), trip.in_end], at))
        .sort((a, b) => b.bytes - a.bytes)
        .slice(0, 6);
      for (const trip of largest) {
        const kept = trip.kept === trip.bytes ? "" : `, ${bytes(trip.kept)} by ${trip.codec}`;
        lines.push(line(`${trip.tensor} in ${trip.tier}${kept}, back at ${time(trip.in_end)}`, bytes(trip.bytes)));
      }
    } else if (height <= LOAD) {
      lines.push(line("without swaps", bytes(loadAt(before, at))));
      lines.push(line(`with ${trips.length} swaps`, bytes(loadAt(after, at))));
      const onDevice = [];
      for (let i = 0; i < buffers.bytes.length; ++i) {
        if (buffers.begin[i] > at || buffers.end[i] <= at) continue;
        if ((swappedOut.get(i) || []).some((gap) => within(gap, at))) continue;
        onDevice.push(i);
      }
      onDevice.sort((a, b) => buffers.bytes[b] - buffers.bytes[a]);
      for (const i of onDevice.slice(0, 5)) lines.push(line(buffers.names[i], bytes(buffers.bytes[i])));
      if (onDevice.length > 5) lines.push(line(`and ${onDevice.length - 5} more`, ""));
      if (data.resident_bytes) lines.push(line("weights and other resident memory", bytes(data.resident_bytes)));
    }
    const stall = stalls.find((each) => each.begin <= at && at <= each.begin + each.wait);
    if (stall) {
      const tensor = stall.tensor ? ` of ${stall.tensor}` : "";
      lines.push(line(`${ops.names[stall.op]} waits (${stall.why}${tensor})`, time(stall.wait)));
    }
    const last = lastUpTo(ops.begin, at);
    for (let i = last, found = 0; i >= 0 && found < 3 && i > last - 200; --i) {
      if (ops.end[i] < at) continue;
      found += 1;
      lines.push(line("runs", ops.names[i]));
    }
    return lines;
  };

  const canvas = document.getElementById("chart");
  canvas.style.height = `${LOAD + ARCS + COPIES + OPS + 18}px`;
  return new View(canvas, end, draw, describe);
};

const addresses = (canvas, map) => {
  const kinds = ["output", "temporary", "other", "swap"];
  const height = 320;
  const y = (address) => 8 + (1 - address / map.height_bytes) * (height - 8);
  const draw = (view, context, clip) => {
    context.fillStyle = colour("faint");
    context.textAlign = "right";
    context.fillText(bytes(map.height_bytes), view.left - 6, 14);
    context.fillText("0", view.left - 6, height);
    axis(view, context, height + 18);
    clip();
    const shades = kinds.map(colour);
    for (let i = 0; i < map.bytes.length; ++i) {
      const from = view.x(map.begin[i]);
      const to = view.x(map.end[i]);
      if (to < view.left || from > view.left + view.width) continue;
      context.fillStyle = shades[map.kind[i]];
      const low = y(map.offset[i]);
      const high = y(map.offset[i] + map.bytes[i]);
      context.fillRect(from, high, Math.max(to - from, 0.5), Math.max(low - high - 0.3, 0.5));
    }
  };
  const describe = (at, pointed) => {
    const address = (1 - (pointed - 8) / (height - 8)) * map.height_bytes;
    const lines = [line("", time(at))];
    for (let i = 0; i < map.bytes.length; ++i) {
      const inside = map.begin[i] <= at && at <= map.end[i];
      if (inside && map.offset[i] <= address && address < map.offset[i] + map.bytes[i]) {
        lines.push(line(`${map.names[i]} (${kinds[map.kind[i]]}) at ${map.offset[i].toLocaleString("en")}`, bytes(map.bytes[i])));
      }
    }
    return lines;
  };
  canvas.style.height = `${height + 20}px`;
  return new View(canvas, map.end_us, draw, describe);
};

const COLUMNS = [
  ["buffer", (b) => b.name, (text) => text],
  ["bytes", (b) => b.bytes, bytes],
  ["allocated", (b) => b.begin, time],
  ["freed", (b) => b.end, time],
  ["longest absence", (b) => b.absence, (us) => (us ? time(us) : "")],
  ["far memory", (b) => b.tier, (text) => text],
  ["stored", (b) => b.kept, (n) => (n ? bytes(n) : "")],
  ["swapped out", (b) => b.swappedOut, (us) => (us ? time(us) : "")],
];
const MAX_ROWS = 500;

const table = (data) => {
  const { buffers } = data;
  const rows = buffers.bytes.map((size, i) => ({
    name: buffers.names[i], bytes: size, begin: buffers.begin[i], end: buffers.end[i],
    absence: buffers.absence[i], tier: "", kept: 0, swappedOut: 0,
  }));
  for (const trip of data.trips) {
    const row = rows[trip.buffer];
    row.tier = trip.codec ? `${trip.tier} (${trip.codec})` : trip.tier;
    row.kept = trip.kept;
    row.swappedOut += trip.in_begin - trip.gone + (trip.in_begin < trip.gone ? data.step_us : 0);
  }
  const head = document.querySelector("#buffers thead tr");
  const body = document.querySelector("#buffers tbody");
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  let [sorted, ascending] = [1, false];

  const fill = () => {
    const query = search.value.toLowerCase();
    const found = rows.filter((row) => `${row.name} ${row.tier}`.toLowerCase().includes(query));
    const value = COLUMNS[sorted][1];
    found.sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      const order = typeof left === "string" ? left.localeCompare(right) : left - right;
      return ascending ? order : -order;
    });
    body.replaceChildren(
      ...found.slice(0, MAX_ROWS).map((row) => {
        const made = element("tr");
        for (const [, get, show] of COLUMNS) element("td", show(get(row)), made);
        made.firstChild.title = row.name;
        return made;
      }),
    );
    count.textContent = found.length > MAX_ROWS ? `${MAX_ROWS} of ${found.length}` : `${found.length}`;
    [...head.children].forEach((cell, i) => {
      cell.setAttribute("aria-sort", i !== sorted ? "none" : ascending ? "ascending" : "descending");
    });
  };

  COLUMNS.forEach(([name], i) => {
    const cell = element("th", undefined, head);
    element("button", name, cell).addEventListener("click", () => {
      ascending = i === sorted ? !ascending : i === 0 || i === 5;
      sorted = i;
      fill();
    });
  });
  search.addEventListener("input", fill);
  fill();
};

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
// A frame is dark where the text around it is light: notebooks have themes of their own.
const setTheme = () => {
  const around = window.frameElement && getComputedStyle(window.frameElement).color;
  const [red, green, blue] = around ? around.match(/[\d.]+/g).map(Number) : [];
  const dark = around ? red + green + blue > 1.5 * 255 : prefersDark.matches;
  document.documentElement.classList.toggle("dark", dark);
};

setTheme();
(async () => {
  const data = await unpack(document.getElementById("data").textContent);
  const views = [];
  if (data.step) {
    views.push(chart(data.step));
    if (document.getElementById("buffers")) table(data.step);
  }
  data.maps.forEach((map, i) => views.push(addresses(document.getElementById(`map${i}`), map)));
  prefersDark.addEventListener("change", () => {
    setTheme();
    views.forEach((view) => view.paint());
  });
  if (window.frameElement && document.body.className === "cell") {
    window.frameElement.style.height = `${document.body.offsetHeight}px`;
  }
  document.documentElement.dataset.ready = "yes";
})();
