// The page of nsqadmin: one script for every view, without dependencies.
//
// It polls /api/overview for the whole cluster and, in a detailed view, the API for that one thing. What comes from
// an nsqd is only ever put into the page as text: nothing here parses HTML.
"use strict";

const settings = JSON.parse(document.body.dataset.settings);
const base = settings.base;
const POLL_MS = 2000;
const PAUSE_MS = 20000; // without polls, such as in a hidden tab
const HISTORY = 300; // seconds of a curve
const SHORTEST = 40; // a few points are drawn wide enough to be seen
const LEVELS = ["fine", "notice", "problem"];

// The DOM

function h(tag, properties = {}, ...children) {
  const svg = tag === "svg" || tag === "polyline";
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const grouped = new Intl.NumberFormat("en-US");
const count = (number) => grouped.format(number || 0);
const rate = (number) => {
  if (!number) return "0/s";
  return number >= 10 ? `${count(Math.round(number))}/s` : `${Number(number).toFixed(number >= 1 ? 1 : 2)}/s`;
};
const bytes = (number) => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) { number /= 1000; unit += 1; }
  return `${unit && number < 100 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
};
const span = (seconds) => {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)}\u00a0${unit}`;
  }
  return seconds < 10 ? `${Math.max(0, seconds).toFixed(1)}\u00a0s` : `${Math.floor(seconds)}\u00a0s`;
};
const nanoseconds = (number) => (number >= 1e9 ? `${(number / 1e9).toFixed(2)} s` : `${(number / 1e6).toFixed(1)} ms`);
const path = (...parts) => `${base}/${parts.map(encodeURIComponent).join("/")}`;
// "." and ".." are good names to nsqd, but a browser would take them out of an address.
const dotted = (part) => part === "." || part === "..";
const link = (text, ...parts) => (parts.some(dotted) ? h("span", {}, text) : h("a", { href: path(...parts) }, text));

function healthOf([level, text]) {
  return h("span", { class: `health level${Number(level)}` }, h("span", { class: "hidden" }, `${LEVELS[level]}: `), text);
}

function spark() {
  return h("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, h("polyline"));
}

function drawSpark(place, points) {
  if (!place.firstChild) place.append(spark());
  place.querySelector("polyline").setAttribute("points", sparkPoints(points));
}

function sparkPoints(points) {
  if (!points || points.length < 2) return "";
  const high = Math.max(...points.map(([, value]) => value), 1);
  const last = points[points.length - 1][0];
  const [[first]] = past.get("waiting") || points; // all curves have the same time axis
  const scale = 100 / Math.max(last - first, SHORTEST);
  return points.map(([time, value]) => `${(100 - (last - time) * scale).toFixed(1)},${(22.5 - (value / high) * 21).toFixed(1)}`).join(" ");
}

// What has been seen: the last overview, and figures over time by name, as pairs of time and value

const seen = { overview: null, asked: 0, at: 0, error: "" };
const past = new Map();

function remember(name, time, value, known) {
  let points = past.get(name);
  if (!points) past.set(name, (points = []));
  points.push([time, value]);
  while (points[0][0] < time - HISTORY) points.shift();
  known.add(name);
}

// What nsqadmin has seen before this page was opened.
function recall({ times, figures }) {
  past.clear();
  for (const [name, values] of Object.entries(figures)) {
    past.set(name, values.map((value, place) => [times[times.length - values.length + place], value]));
  }
}

const isPartitioned = (topic) => topic.stored_bytes !== undefined && topic.stored_bytes !== null;
const waiting = (topic) => topic.depth + topic.channels.reduce((sum, channel) => sum + channel.depth, 0);
const sum = (things, figure) => things.reduce((total, thing) => total + figure(thing), 0);

function rememberAll(overview) {
  const known = new Set();
  const note = (name, value) => remember(name, overview.time, value, known);
  // The names are those of nsqadmin's history.
  for (const topic of overview.topics) {
    note(`topic ${topic.name}`, waiting(topic));
    for (const channel of topic.channels) note(`channel ${topic.name} ${channel.name}`, channel.depth);
  }
  note("waiting", sum(overview.topics, waiting));
  note("rate", sum(overview.topics, (topic) => topic.rate));
  for (const node of overview.nodes) {
    note(`memory ${node.name}`, node.memory.heap_in_use_bytes || 0);
    note(`pause ${node.name}`, node.memory.gc_pause_usec_99 || 0);
    note(`depth ${node.name}`, node.depth);
  }
  for (const name of past.keys()) { // a page may stay open for weeks, and see many channels that live for a minute
    if (!known.has(name)) past.delete(name);
  }
}

// Asking nsqadmin

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, target, body) {
  // Channel "orders" of a topic called "." must not become the topic "orders".
  if (target.split(/[/?]/).some(dotted)) throw new Refused(0, "A name of dots alone cannot be part of an address: use nsqd's HTTP API");
  const options = { method, headers: { Accept: "application/json" }, credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const reply = await fetch(base + target, options);
  let data;
  try {
    data = await reply.json();
  } catch {
    throw new Refused(reply.status, `${reply.status} ${reply.statusText}: not an answer of nsqadmin's`);
  }
  if (!reply.ok) throw new Refused(reply.status, data.message || `${reply.status}`);
  return data;
}

// Tables: one row for each name, whose cells change in place

class Table {
  // columns: {title, text(row) or node(row) and key(row), class, sort(row)}
  constructor(label, columns, name, empty) {
    this.columns = columns;
    this.name = name;
    this.rows = new Map();
    this.order = null;
    this.data = [];
    this.head = columns.map((column, place) => this.heading(column, place));
    this.tbody = h("tbody");
    this.empty = h("p", { class: "soft", hidden: true }, empty);
    this.scroll = h("div", { class: "scroll", hidden: true, tabindex: "0", role: "region", "aria-label": label },
      h("table", {}, h("caption", { class: "hidden" }, label), h("thead", {}, h("tr", {}, this.head)), this.tbody));
    this.node = h("div", {}, this.scroll, this.empty);
  }

  heading(column, place) {
    if (!column.sort) return h("th", { scope: "col", class: column.class }, column.title);
    const button = h("button", { type: "button", onclick: () => this.sortBy(place) }, column.title);
    return h("th", { scope: "col", class: column.class }, button);
  }

  sortBy(place) {
    const down = this.order && this.order.place === place ? !this.order.down : this.columns[place].class !== undefined;
    this.order = { place, down };
    this.head.forEach((cell, each) => {
      if (each === place) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    this.show(this.data);
  }

  show(data) {
    this.data = data;
    let ordered = data;
    if (this.order) {
      const { sort } = this.columns[this.order.place];
      const sign = this.order.down ? -1 : 1;
      const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
      ordered = [...data].sort((a, b) => sign * compare(sort(a), sort(b)));
    }
    const rows = ordered.map((each) => this.row(each));
    const current = this.tbody.rows;
    if (current.length !== rows.length || rows.some((row, place) => current[place] !== row)) this.tbody.replaceChildren(...rows);
    rows.forEach((row, place) => { if (row.visible || (row.blank && place < SCREENFUL)) row.draw(); });
    this.drawRest();
    const names = new Set(data.map(this.name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      observer.unobserve(row);
      this.rows.delete(name);
    }
    this.scroll.hidden = data.length === 0;
    this.empty.hidden = data.length !== 0;
  }

  row(each) {
    const name = this.name(each);
    let row = this.rows.get(name);
    if (!row) {
      row = h("tr", {}, this.columns.map((column, place) => (place === 0
        ? h("th", { scope: "row", class: column.class }) : h("td", { class: column.class }))));
      row.shown = [];
      row.blank = true;
      row.draw = () => this.draw(row);
      observer.observe(row);
      this.rows.set(name, row);
    }
    row.data = each;
    return row;
  }

  draw(row) {
    row.blank = false;
    this.columns.forEach((column, place) => {
      const cell = row.cells[place];
      if (column.text) setText(cell, column.text(row.data));
      else if (column.spark) {
        if (row.visible) drawSpark(cell, past.get(column.spark(row.data)));
      } else {
        const key = column.key(row.data);
        if (row.shown[place] !== key) {
          row.shown[place] = key;
          cell.replaceChildren(column.node(row.data));
        }
      }
    });
  }

  // What is not on the screen is drawn when there is time, a few rows at once, and again only when it is scrolled to.
  drawRest() {
    dropIdle(this.resting);
    this.resting = whenIdle(() => {
      const blank = Array.from(this.tbody.rows).filter((row) => row.blank);
      blank.slice(0, SCREENFUL).forEach((row) => row.draw());
      if (blank.length > SCREENFUL) this.drawRest();
    });
  }
}

// Hundreds of rows and curves drawn again every two seconds would make the page stutter: visible rows come first.
const SCREENFUL = 40;
const whenIdle = window.requestIdleCallback || ((work) => setTimeout(work, 30)); // Safari has none
const dropIdle = window.cancelIdleCallback || clearTimeout;
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    entry.target.visible = entry.isIntersecting;
    if (entry.isIntersecting) entry.target.draw();
  }
}, { rootMargin: "100px" });

const number = (title, figure, more = {}) => ({
  title, class: "number", text: (row) => count(figure(row)), sort: figure, ...more,
});
const named = (title, make) => ({ title, node: make, key: (row) => row.name, sort: (row) => row.name });
const health = { title: "Health", node: (row) => healthOf(row.health), key: (row) => row.health.join(), sort: (row) => -row.health[0] };
const sparkline = (name) => ({ title: "5 min", spark: name });

function tile(title, value, points) {
  const shown = h("dd");
  const line = points ? spark() : null;
  const node = h("div", { class: "tile" }, h("dt", {}, title), shown, line ? h("dd", {}, line) : null);
  node.show = () => {
    const made = value();
    if (made instanceof Node) shown.replaceChildren(made);
    else setText(shown, made);
    if (line) drawSpark(line.parentNode, past.get(points));
  };
  return node;
}

function tiles(...all) {
  const node = h("dl", { class: "tiles" }, all);
  node.show = () => all.forEach((each) => each.show());
  return node;
}

// Asking before something is lost, and doing it

const dialog = document.getElementById("dialog");

function confirmThat(title, lost, button) {
  return new Promise((resolve) => {
    const close = (answer) => {
      dialog.close();
      dialog.replaceChildren();
      resolve(answer);
    };
    const no = h("button", { type: "button", onclick: () => close(false) }, "Cancel");
    dialog.replaceChildren(
      h("h2", { id: "dialog-title" }, title),
      ...lost.map((line) => (line instanceof Node ? line : h("p", {}, line))),
      h("div", { class: "actions" }, h("button", { type: "button", class: "danger", onclick: () => close(true) }, button), no),
    );
    dialog.oncancel = () => close(false);
    dialog.showModal();
    no.focus();
  });
}

async function act(what, method, target, body, after) {
  try {
    const reply = await ask(method, target, body);
    note(reply.message ? `${what}: done in part. ${reply.message}` : "");
    if (after) go(after);
  } catch (error) {
    note(`${what}: ${error.message}`);
  }
  await poll();
}

function note(text) {
  noted = text;
  showBanner();
}

let noted = "";

const several = (number_, thing) => (number_ === 1 ? `1 ${thing}` : `${count(number_)} ${thing}s`);
const messages = (number_) => several(number_, "message");

async function empty(topic, channel, figures) {
  const name = channel ? `channel ${channel} of topic ${topic}` : `topic ${topic}`;
  const lost = [`${messages(figures.depth)} waiting now in the ${name} are lost for good, on every nsqd that has it. So is what arrives in the meantime.`];
  if (figures.in_flight) lost.push(`So are ${messages(figures.in_flight)} that consumers have now.`);
  if (figures.deferred) lost.push(`So are ${messages(figures.deferred)} that are deferred.`);
  if (!channel) lost.push("What has reached its channels stays there.");
  const button = `Empty: lose ${messages(figures.depth)}`;
  if (await confirmThat(`Empty ${name}?`, lost, button)) {
    await act(`Empty ${name}`, "POST", apiOf(topic, channel), { action: "empty" });
  }
}

async function remove(topic, channel, figures) {
  const name = channel ? `channel ${channel} of topic ${topic}` : `topic ${topic}`;
  const lost = channel
    ? [`The channel and ${messages(figures.depth + figures.in_flight + figures.deferred)} in it are lost for good; its consumers are disconnected.`]
    : [`The topic, its ${several(figures.channels.length, "channel")} and ${messages(waiting(figures))} waiting in them are lost for good, on every nsqd and nsqlookupd.`];
  lost.push("A client that publishes or subscribes to it creates it again.");
  if (await confirmThat(`Delete ${name}?`, lost, `Delete ${channel || topic}`)) {
    await act(`Delete ${name}`, "DELETE", apiOf(topic, channel), undefined, channel ? path("topics", topic) : path("topics"));
  }
}

async function pause(topic, channel, paused) {
  const name = channel ? `channel ${channel} of topic ${topic}` : `topic ${topic}`;
  const effect = channel ? "Its consumers receive nothing until it is unpaused" : "Its messages reach no channel until it is unpaused";
  if (paused || (await confirmThat(`Pause ${name}?`, [`${effect}. Messages wait; none is lost.`], "Pause"))) {
    await act(`${paused ? "Unpause" : "Pause"} ${name}`, "POST", apiOf(topic, channel), { action: paused ? "unpause" : "pause" });
  }
}

async function tombstone(node, topic) {
  const lost = [
    `${node} is hidden from consumers of ${topic} for a while, and the topic is deleted there, with the messages it holds.`,
    "Stop publishing to it first: a publish creates the topic again.",
  ];
  if (await confirmThat(`Tombstone ${topic} on ${node}?`, lost, "Tombstone")) {
    await act(`Tombstone ${topic} on ${node}`, "DELETE", `/api/nodes/${encodeURIComponent(node)}`, { topic });
  }
}

function apiOf(topic, channel) {
  return `/api/topics/${encodeURIComponent(topic)}${channel ? `/${encodeURIComponent(channel)}` : ""}`;
}

function actions(topic, channel, figures) {
  if (!settings.admin) return h("p", { class: "soft" }, "Only admins may change things here.");
  const toggle = h("button", { type: "button", onclick: () => pause(topic, channel, figures().paused) }, "Pause");
  const emptying = h("button", { type: "button", class: "danger", onclick: () => empty(topic, channel, figures()) }, "Empty");
  const node = h("div", { class: "actions" }, toggle, emptying,
    h("button", { type: "button", class: "danger", onclick: () => remove(topic, channel, figures()) }, "Delete"),
    channel ? h("button", { type: "button", onclick: () => redrive(topic, channel, figures()) }, "Send back …") : null);
  node.show = () => {
    setText(toggle, figures().paused ? "Unpause" : "Pause");
    toggle.hidden = emptying.hidden = isPartitioned(figures()); // a partitioned NSQ can do that to channels alone
  };
  return node;
}

function creation(topic) {
  if (!settings.admin) return null;
  const what = topic ? "channel" : "topic";
  const input = h("input", { "aria-label": `Name of a new ${what}`, placeholder: `New ${what}`, maxlength: "64", required: true });
  return h("form", {
    class: "actions",
    onsubmit: (event) => {
      event.preventDefault();
      const body = topic ? { topic, channel: input.value } : { topic: input.value };
      act(`Create ${what} ${input.value}`, "POST", "/api/topics", body);
      input.value = "";
    },
  }, input, h("button", {}, `Create ${what}`));
}

// Views: each returns {title, node, show(overview), poll() if it has figures of its own}

const find = (list, name) => list.find((each) => each.name === name);

function heading(title, ...crumbs) {
  const way = crumbs.length ? h("p", { class: "crumbs" }, crumbs.flatMap((each) => [each, " / "])) : null;
  return [way, h("h1", { tabindex: "-1" }, title)];
}

function topicsView() {
  const table = new Table("Topics", [
    named("Topic", (row) => link(row.name, "topics", row.name)),
    sparkline((row) => `topic ${row.name}`),
    number("Waiting", waiting, { text: (row) => (isPartitioned(row) ? `${count(waiting(row))} (${bytes(row.stored_bytes)} stored)` : count(waiting(row))) }),
    number("In", (row) => row.rate, { text: (row) => rate(row.rate), class: "number wide" }),
    number("In flight", (row) => sum(row.channels, (each) => each.in_flight), { class: "number wide" }),
    number("Channels", (row) => row.channels.length, { class: "number wide" }),
    number("Consumers", (row) => sum(row.channels, (each) => each.clients), { class: "number wide" }),
    number("nsqds", (row) => row.nodes, { class: "number wide" }),
    health,
  ], (row) => row.name, "There are no topics: a publish creates one.");
  const all = () => seen.overview.topics;
  const facts = tiles(
    tile("Messages waiting", () => count(sum(all(), waiting)), "waiting"),
    tile("Published", () => rate(sum(all(), (topic) => topic.rate)), "rate"),
    tile("Topics", () => count(all().length)),
    tile("nsqds up", () => `${seen.overview.nodes.filter((node) => node.health[0] < 2).length} of ${seen.overview.nodes.length}`),
    tile("Problems", () => count(all().filter((topic) => topic.health[0] === 2).length)),
  );
  return {
    title: "Topics",
    node: h("div", {}, heading("Topics"), facts, creation(), table.node),
    show(overview) {
      facts.show();
      table.show(overview.topics);
    },
  };
}

function topicView(topic) {
  const figures = () => find(seen.overview.topics, topic) || { depth: 0, channels: [], messages: 0, rate: 0, nodes: 0, paused: false, health: [1, "there is no such topic"] };
  const channels = new Table(`Channels of ${topic}`, [
    named("Channel", (row) => link(row.name, "topics", topic, row.name)),
    sparkline((row) => `channel ${topic} ${row.name}`),
    number("Depth", (row) => row.depth),
    number("In flight", (row) => row.in_flight, { class: "number wide" }),
    number("Deferred", (row) => row.deferred, { class: "number wide" }),
    number("Requeued", (row) => row.requeued, { class: "number wide" }),
    number("Timed out", (row) => row.timed_out, { class: "number wide" }),
    number("Finished", (row) => row.finished, { text: (row) => rate(row.finished), class: "number wide" }),
    number("Consumers", (row) => row.clients, { class: "number wide" }),
    health,
  ], (row) => row.name, "No channel: messages wait for the first one.");
  const nodes = new Table(`nsqds with ${topic}`, [
    ...nodeColumns(),
    number("Messages", (row) => row.message_count, { class: "number wide" }),
    { title: "Latency", text: latency, class: "wide" },
    { title: "Action", node: (row) => (settings.admin && settings.lookupds ? h("button", { type: "button", class: "danger", onclick: () => tombstone(row.node, topic) }, "Tombstone") : ""), key: () => 1 },
  ], (row) => row.node, "No nsqd has this topic now.");
  const facts = tiles(
    tile("Waiting", () => count(waiting(figures())), `topic ${topic}`),
    // A partitioned nsqd counts the bytes that it keeps of a topic, not the messages.
    tile("In the topic itself", () => (isPartitioned(figures()) ? `${bytes(figures().stored_bytes)} stored` : count(figures().depth))),
    tile("Published", () => rate(figures().rate)),
    tile("Messages so far", () => count(figures().messages)),
    tile("Health", () => healthOf(figures().health)),
  );
  const buttons = actions(topic, "", figures);
  const charts = graphite(`topic=${encodeURIComponent(topic)}`);
  const peek = peeking(topic, "");
  return {
    title: topic,
    node: h("div", {}, heading(topic, link("Topics", "topics")), buttons, facts,
      h("h2", {}, "Channels"), channels.node, creation(topic), h("h2", {}, "nsqds"), nodes.node, peek, following(topic), charts),
    show() {
      facts.show();
      if (buttons.show) buttons.show();
      channels.show(figures().channels);
    },
    async poll() {
      const reply = await ask("GET", apiOf(topic));
      nodes.show(reply.nodes || []);
    },
  };
}

const depthOf = (row) => (isPartitioned(row) ? `${bytes(row.stored_bytes)} stored` : count(row.depth));

function nodeColumns() {
  return [
    { title: "nsqd", node: (row) => link(row.node, "nodes", row.node), key: (row) => row.node, sort: (row) => row.node },
    number("Depth", (row) => (isPartitioned(row) ? row.stored_bytes : row.depth), { text: depthOf }),
    number("Memory + disk", (row) => row.depth, { text: (row) => (isPartitioned(row) ? `partition ${row.partitions.join(", ")}` : `${count(row.memory_depth)} + ${count(row.backend_depth)}`), class: "number wide" }),
    { title: "Paused", text: (row) => (row.paused ? "paused" : ""), class: "wide" },
  ];
}

function latency(row) {
  const percentiles = (row.e2e_processing_latency && row.e2e_processing_latency.percentiles) || [];
  return percentiles.map((each) => `${each.quantile * 100}%: ${nanoseconds(each.value === undefined ? each.average : each.value)}`).join(", ");
}

// When deferred messages are due, over all nsqds: a bar for each span of time.
function dueHistogram() {
  const rows = h("table", { class: "due" });
  const node = h("div", { hidden: true }, h("h2", {}, "Deferred messages: when they are due"), rows);
  return {
    node,
    show(nodes) {
      const totals = new Map();
      for (const each of nodes.flatMap((row) => row.deferred_due || [])) totals.set(each.within, (totals.get(each.within) || 0) + each.count);
      const most = Math.max(0, ...totals.values());
      node.hidden = !most;
      rows.replaceChildren(...[...totals].map(([within, number]) => h("tr", {},
        h("th", { scope: "row" }, within ? `within ${span(within)}` : "later"),
        h("td", {}, h("meter", { min: 0, max: most || 1, value: number, "aria-hidden": "true" })),
        h("td", { class: "number" }, count(number)))));
    },
  };
}

function channelView(topic, channel) {
  const none = { depth: 0, in_flight: 0, deferred: 0, requeued: 0, timed_out: 0, dropped: 0, messages: 0, clients: 0, rate: 0, finished: 0, paused: false, health: [1, "there is no such channel"] };
  const figures = () => find((find(seen.overview.topics, topic) || { channels: [] }).channels, channel) || none;
  const clients = new Table(`Consumers of ${channel}`, [
    { title: "Consumer", text: (row) => row.client_id || row.hostname || row.remote_address, sort: (row) => row.hostname },
    { title: "State", node: (row) => healthOf(stateOf(row)), key: (row) => stateOf(row).join() },
    number("In flight", (row) => row.in_flight_count),
    number("Ready", (row) => row.ready_count),
    number("Requeued", (row) => row.requeue_count),
    number("Finished", (row) => row.finish_count, { class: "number wide" }),
    { title: "Since", text: (row) => span(row.connected / 1e9), class: "wide", sort: (row) => row.connect_ts },
    { title: "Address", text: (row) => row.remote_address, class: "wide" },
    { title: "nsqd", text: (row) => row.node, class: "wide", sort: (row) => row.node },
    { title: "Connection", text: connectionOf, class: "wide" },
    { title: "Version", text: (row) => row.user_agent, class: "wide", sort: (row) => row.user_agent },
  ], (row) => `${row.node} ${row.remote_address}`, "No consumers.");
  const nodes = new Table(`nsqds with ${channel}`, [
    ...nodeColumns(),
    number("In flight", (row) => row.in_flight_count),
    number("Deferred", (row) => row.deferred_count, { class: "number wide" }),
    number("Requeued", (row) => row.requeue_count, { class: "number wide" }),
    number("Timed out", (row) => row.timeout_count, { class: "number wide" }),
    { title: "Latency", text: latency, class: "wide" },
  ], (row) => row.node, "No nsqd has this channel now.");
  const due = dueHistogram();
  const facts = tiles(
    tile("Depth", () => count(figures().depth), `channel ${topic} ${channel}`),
    tile("In flight", () => count(figures().in_flight)),
    tile("Deferred", () => count(figures().deferred)),
    tile("In", () => rate(figures().rate)),
    tile("Finished", () => rate(figures().finished)),
    tile("Requeued", () => count(figures().requeued)),
    tile("Timed out", () => count(figures().timed_out)),
    tile("Dropped", () => count(figures().dropped)),
    tile("Health", () => healthOf(figures().health)),
  );
  const buttons = actions(topic, channel, figures);
  const peek = peeking(topic, channel);
  const charts = graphite(`topic=${encodeURIComponent(topic)}&channel=${encodeURIComponent(channel)}`);
  return {
    title: `${channel} of ${topic}`,
    node: h("div", {}, heading(channel, link("Topics", "topics"), link(topic, "topics", topic)), buttons, facts,
      h("h2", {}, "Consumers: what is in flight, with whom"), clients.node, h("h2", {}, "nsqds"), nodes.node, due.node, peek, charts),
    show() {
      facts.show();
      if (buttons.show) buttons.show();
    },
    async poll() {
      const reply = await ask("GET", apiOf(topic, channel));
      nodes.show(reply.nodes || []);
      clients.show(reply.clients || []);
      due.show(reply.nodes || []);
    },
  };
}

function connectionOf(client) {
  const parts = [client.tls ? client.tls_version || "TLS" : "plain"];
  if (client.snappy) parts.push("snappy");
  if (client.deflate) parts.push("deflate");
  if (client.sample_rate) parts.push(`${client.sample_rate} % sampled`);
  if (client.authed) parts.push(`as ${client.auth_identity || "an authorized client"}`);
  return parts.join(", ");
}

function stateOf(client) {
  if (client.ready_count === 0) return [2, "takes nothing: backing off, or paused"];
  if (client.in_flight_count >= client.ready_count) return [0, "busy"];
  return [0, "ready"];
}

// Messages that wait, or that consumers have now

const firstOf = (number_) => (number_ === 1 ? "1 message waits" : `The first ${messages(number_)} that wait`);
const WAITING = {
  args: "",
  some: (number_) => `${firstOf(number_)}. Looking takes none away.`,
  inChannels: (number_) => `The topic's own queue is empty. ${firstOf(number_)} in its channels. Looking takes none away.`,
  none: "No message waits.",
  cannot: "cannot show messages, as no nsqd of Go's can",
};
const IN_FLIGHT = {
  args: "&in_flight=true",
  some: (number_) => `${messages(number_)} in flight, the longest first.`,
  none: "No message is in flight.",
  cannot: "cannot say which messages are in flight, only how many, as every nsqd of Go's",
};

function peeking(topic, channel) {
  if (!settings.admin) return h("section", {}, h("h2", {}, "Messages"), h("p", { class: "soft" }, "Only admins may read messages."));
  const list = h("ul", { class: "messages" });
  const status = h("p", { class: "soft", role: "status" });
  const filter = h("input", { type: "search", placeholder: "Search in them", "aria-label": "Search in the messages", oninput: () => show() });
  let shown = [];

  function show() {
    const word = filter.value.toLowerCase();
    const found = shown.filter((each) => !word || `${textOf(each)} ${holderOf(each)} ${reasonOf(each)}`.toLowerCase().includes(word));
    list.replaceChildren(...found.map((each) => messageNode(each, word)));
  }

  async function look(kind) {
    setText(status, "Looking …");
    try {
      const where = [topic, channel].filter(Boolean).map(encodeURIComponent).join("/");
      const reply = await ask("GET", `/api/peek/${where}?n=10${kind.args}`);
      shown = reply.messages;
      const refused = Object.entries(reply.refused);
      const cannot = refused.filter(([, code]) => code === "NOT_FOUND").map(([node]) => node);
      const must = refused.filter(([, code]) => code !== "NOT_FOUND").map(([node]) => node);
      setText(status, [
        shown.length && shown[0].channels ? kind.inChannels(shown.length)
          : shown.length ? kind.some(shown.length) : refused.length ? "" : kind.none,
        cannot.length ? `${cannot.join(", ")} ${kind.cannot}.` : "",
        must.length ? `${must.join(", ")} shows messages only to its own machine: start it with --peek=all.` : "",
        reply.message,
      ].filter(Boolean).join(" "));
      show();
    } catch (error) {
      setText(status, error.message);
    }
  }

  const button = (text, kind) => h("button", { type: "button", onclick: () => look(kind) }, text);
  return h("section", { class: "peek" }, h("h2", {}, "Messages"),
    h("div", { class: "actions" }, button("Look at messages", WAITING), channel ? button("Look at what is in flight", IN_FLIGHT) : null, filter), status, list);
}

// Following a topic. The page asks twice a second; nsqadmin closes what is no longer asked for.

function following(topic) {
  if (!settings.admin) return null;
  const list = h("ul", { class: "messages" });
  const status = h("p", { class: "soft", role: "status" }, "Shows messages as they are published, through a channel of its own that goes away again. It takes none from other channels, and misses what comes faster than it shows.");
  const button = h("button", { type: "button", onclick: () => (id ? stop() : start()) }, "Start");
  let id = "";
  let next = 0;

  async function start() {
    try {
      id = (await ask("POST", `/api/tail/${encodeURIComponent(topic)}`, {})).id;
      next = 0;
      setText(button, "Stop");
      setText(status, "Waiting for messages …");
      follow();
    } catch (error) {
      setText(status, error.message === "NO_CHANNEL" ? "This topic has no channel yet. Create one first: as the first channel, a live tail would take the waiting messages." : error.message);
    }
  }

  async function stop() {
    const old = id;
    id = "";
    setText(button, "Start");
    setText(status, "Stopped.");
    await ask("DELETE", `/api/tail/${encodeURIComponent(topic)}/${old}`).catch(() => undefined);
  }

  async function follow() {
    const mine = id;
    while (id && id === mine) {
      if (!button.isConnected) return stop();
      try {
        const reply = await ask("GET", `/api/tail/${encodeURIComponent(topic)}/${id}?after=${next}`);
        next = reply.next;
        setText(status, reply.problem || (list.firstChild ? "Following." : "Waiting for messages …"));
        list.prepend(...reply.messages.reverse().map((each) => messageNode(each, "")));
        while (list.children.length > 50) list.lastChild.remove();
      } catch (error) {
        id = "";
        setText(button, "Start");
        setText(status, error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    return undefined;
  }

  return h("section", { class: "tail" }, h("h2", {}, "Live tail"), h("div", { class: "actions" }, button), status, list);
}

// Sending dead letters back

async function redrive(topic, channel, figures) {
  const guess = topic.replace(/[._-](dead|failed|dlq|dead[._-]?letters?|errors?)$/i, "");
  const input = h("input", { "aria-label": "Topic to send them to", value: guess === topic ? "" : guess, maxlength: "64" });
  const text = `${messages(figures.depth)} waiting in channel ${channel} of topic ${topic} are published to the topic below and taken out of the channel. None is lost; an interruption can publish one twice.`;
  if (!(await confirmThat(`Send back what waits in ${channel}?`, [text, input], "Send back")) || !input.value) return;
  try {
    const reply = await ask("POST", apiOf(topic, channel), { action: "redrive", to: input.value });
    note(`${messages(reply.moved)} sent to ${input.value}. ${reply.message}`);
  } catch (error) {
    note(`Send back: ${error.message === "INVALID_TOPIC" ? `there is no other topic ${input.value}` : error.message}`);
  }
  await poll();
}

const utf8 = new TextDecoder("utf-8", { fatal: true });

function rawOf(message) {
  if (message.encoding === "utf-8") return new TextEncoder().encode(message.body);
  return Uint8Array.from(atob(message.body), (each) => each.charCodeAt(0));
}

function textOf(message) {
  if (message.encoding === "utf-8") return message.body;
  try {
    return utf8.decode(rawOf(message));
  } catch {
    return hex(rawOf(message));
  }
}

function holderOf(message) {
  if (!message.client) return "";
  const { client_id: name, hostname, remote_address: address } = message.client;
  return `with ${[name || hostname, address].filter(Boolean).join(", ")} for ${span(message.in_flight_ms / 1000)}`;
}

function reasonOf(message) {
  const letter = message.dead_letter;
  if (!letter) return "";
  return [`${(letter.source || "").slice(1)} gave it up: ${letter.reason}`, letter.error, letter.place].filter(Boolean).join(" · ");
}

function messageNode(message, word) {
  const age = `${span(message.age_ms / 1000)} old`;
  const attempts = message.attempts === 1 ? "1 attempt" : `${message.attempts} attempts`;
  const facts = [message.id, age, attempts, bytes(message.size), message.node];
  if (message.channels) facts.push(`in ${message.channels.join(", ")}`);
  if (message.truncated) facts.push("only its beginning is shown");
  const holder = holderOf(message);
  const about = [reasonOf(message), holder].filter(Boolean).map((each) => h("div", {}, marked(each, word)));
  return h("li", {}, ...about, h("div", { class: "soft" }, facts.join(" · ")), bodyNode(message, word));
}

// JSON.parse rounds numbers such as a 64-bit id. Where the browser tells how a number was written, that is shown.
const isRaw = (value) => Boolean(JSON.isRawJSON && JSON.isRawJSON(value));
const exact = (key, value, written) => (
  typeof value === "number" && written && JSON.rawJSON && written.source !== String(value) ? JSON.rawJSON(written.source) : value);

function bodyNode(message, word) {
  const text = textOf(message);
  let value;
  try {
    value = JSON.parse(text, exact);
  } catch {
    return h("pre", { class: "body", tabindex: "0" }, marked(text, word));
  }
  if (value === null || typeof value !== "object") return h("pre", { class: "body", tabindex: "0" }, marked(text, word));
  return h("div", { class: "body", tabindex: "0" }, jsonNode(value, word, 0));
}

function marked(text, word) {
  if (!word) return [text];
  const parts = [];
  const lower = text.toLowerCase();
  let from = 0;
  for (let place = lower.indexOf(word); place >= 0; place = lower.indexOf(word, from)) {
    parts.push(text.slice(from, place), h("mark", {}, text.slice(place, place + word.length)));
    from = place + word.length;
  }
  parts.push(text.slice(from));
  return parts;
}

function jsonNode(value, word, depth) {
  if (value === null || typeof value !== "object" || isRaw(value)) {
    const kind = typeof value === "string" ? "string" : "literal";
    return h("span", { class: kind }, marked(JSON.stringify(value), word));
  }
  const entries = Object.entries(value);
  const brackets = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return h("span", {}, brackets);
  const rows = entries.slice(0, 500).map(([key, each]) => h("div", {},
    Array.isArray(value) ? null : h("span", { class: "key" }, marked(JSON.stringify(key), word), ": "), depth < 40 ? jsonNode(each, word, depth + 1) : "…"));
  if (entries.length > 500) rows.push(h("div", { class: "soft" }, `and ${entries.length - 500} more`));
  const short = JSON.stringify(value);
  const summary = h("summary", {}, short.length > 90 ? `${short.slice(0, 90)} … ${brackets[1]}` : short);
  return h("details", { open: depth < 1 || Boolean(word) }, summary, rows);
}

function hex(raw) {
  const lines = [];
  for (let start = 0; start < Math.min(raw.length, 4096); start += 16) {
    const part = raw.slice(start, start + 16);
    const digits = Array.from(part, (each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(part, (each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

// nsqds, counter, lookup

function nodesView() {
  const table = new Table("nsqds", [
    named("nsqd", (row) => link(row.name, "nodes", row.name)),
    { title: "Host", text: (row) => row.hostname, class: "wide", sort: (row) => row.hostname },
    { title: "Version", text: (row) => row.version, class: "wide", sort: (row) => row.version },
    sparkline((row) => `depth ${row.name}`),
    number("Waiting", (row) => row.depth),
    number("Topics", (row) => row.topics, { class: "number wide" }),
    number("Consumers", (row) => row.clients, { class: "number wide" }),
    number("Memory", (row) => row.memory.heap_in_use_bytes || 0, { text: (row) => bytes(row.memory.heap_in_use_bytes || 0), class: "number wide" }),
    { title: "Up", text: (row) => (row.start_time ? span(seen.overview.time - row.start_time) : ""), class: "wide", sort: (row) => row.start_time },
    { title: "Heard", text: (row) => (row.silent < 10 ? "now" : `${span(row.silent)} ago`), class: "wide", sort: (row) => row.silent },
    health,
  ], (row) => row.name, "No nsqd is known.");
  return {
    title: "Nodes",
    node: h("div", {}, heading("Nodes"), table.node),
    show: (overview) => table.show(overview.nodes),
  };
}

function nodeView(name) {
  const figures = () => find(seen.overview.nodes, name) || { depth: 0, messages: 0, clients: 0, memory: {}, start_time: 0, version: "", health: [2, "no nsqlookupd lists it"] };
  const facts = tiles(
    tile("Waiting", () => count(figures().depth), `depth ${name}`),
    tile("Memory in use", () => bytes(figures().memory.heap_in_use_bytes || 0), `memory ${name}`),
    tile("Garbage collection (99 %)", () => `${count(figures().memory.gc_pause_usec_99)} µs`, `pause ${name}`),
    tile("Collections", () => count(figures().memory.gc_total_runs)),
    tile("Consumers", () => count(figures().clients)),
    tile("Version", () => figures().version),
    tile("Up", () => (figures().start_time ? span(seen.overview.time - figures().start_time) : "")),
    tile("Health", () => healthOf(figures().health)),
  );
  const topics = new Table(`Topics of ${name}`, [
    { title: "Topic", node: (row) => link(row.topic_name, "topics", row.topic_name), key: (row) => row.topic_name, sort: (row) => row.topic_name },
    number("Depth", (row) => row.depth, { text: depthOf }),
    number("Messages", (row) => row.message_count, { class: "number wide" }),
    number("In channels", (row) => sum(row.channels, (each) => each.depth)),
    number("Consumers", (row) => sum(row.channels, (each) => each.client_count)),
    { title: "Channels", text: (row) => row.channels.map((each) => each.channel_name).join(", "), class: "wide" },
    { title: "Action", node: (row) => (settings.admin && settings.lookupds ? h("button", { type: "button", class: "danger", onclick: () => tombstone(name, row.topic_name) }, "Tombstone") : ""), key: () => 1 },
  ], (row) => row.topic_name, "It has no topics.");
  const charts = graphite(`node=${encodeURIComponent(name)}`);
  return {
    title: name,
    node: h("div", {}, heading(name, link("Nodes", "nodes")), facts, h("h2", {}, "Topics"), topics.node, charts),
    show: () => facts.show(),
    async poll() {
      const reply = await ask("GET", `/api/nodes/${encodeURIComponent(name)}`);
      topics.show(reply.topics);
    },
  };
}

function counterView() {
  const total = h("p", { class: "counter" });
  const facts = tiles(tile("Published", () => rate(sum(seen.overview.topics, (topic) => topic.rate)), "rate"));
  return {
    title: "Counter",
    node: h("div", {}, heading("Counter"), h("p", {}, "Messages that all channels have received since their nsqds started"), total, facts),
    show(overview) {
      setText(total, count(sum(overview.topics, (topic) => sum(topic.channels, (each) => each.messages))));
      facts.show();
    },
  };
}

function lookupView() {
  const kind = settings.lookupds ? "nsqlookupds" : "nsqds named on the command line";
  const upstreams = new Table(kind, [
    { title: "Address", text: (row) => row.address, sort: (row) => row.address },
    { title: "Health", node: (row) => healthOf(row.error ? [2, row.error] : [0, "fine"]), key: (row) => row.error },
  ], (row) => row.address, "None.");
  const inactive = new Table("Topics without an nsqd", [
    { title: "Topic", text: (row) => row.name, sort: (row) => row.name },
    { title: "Channels", text: (row) => row.channels.join(", ") },
    { title: "Action", node: (row) => (settings.admin ? h("button", { type: "button", class: "danger", onclick: () => remove(row.name, "", { depth: 0, channels: row.channels.map(() => ({ depth: 0 })) }) }, "Delete") : ""), key: (row) => row.channels.join() },
  ], (row) => row.name, "Every topic has an nsqd.");
  return {
    title: "Lookup",
    node: h("div", {}, heading("Lookup"), upstreams.node, creation(), h("h2", {}, "Topics that no nsqd offers now"), inactive.node),
    show: (overview) => upstreams.show(overview.upstreams),
    async poll() {
      const reply = await ask("GET", "/api/topics?inactive=true");
      inactive.show(Object.entries(reply.topics).map(([name, channels]) => ({ name, channels: channels || [] })));
    },
  };
}

function graphite(query) {
  const node = h("section");
  if (!settings.graphite_enabled) return node;
  ask("GET", `/api/charts?${query}`).then((reply) => {
    node.append(h("h2", {}, "Graphite"), h("div", { class: "charts" }, reply.charts.map((chart) => {
      const args = new URLSearchParams({ target: chart.target, from: "-2hours", width: "480", height: "200", title: chart.title });
      return h("img", { src: `${settings.graphite}/render?${args}`, alt: `${chart.title} over two hours`, loading: "lazy" });
    })));
  }, (error) => node.append(h("p", { class: "soft" }, error.message)));
  return node;
}

// Search: while there is text in its field, its results stand in place of the view

const search = document.getElementById("search");
const searched = () => search.value.toLowerCase().split(/\s+/).filter(Boolean);
const includes = (name, word) => Boolean(name) && name.toLowerCase().includes(word);
const matches = (words, ...names) => words.every((word) => names.some((name) => includes(name, word)));
search.addEventListener("input", () => place());
search.addEventListener("keydown", (event) => {
  const first = event.key === "Enter" && searched().length && results.node.querySelector("a[href]");
  if (first) first.click();
});

function searchView() {
  const table = new Table("Results", [
    { title: "Name", node: (row) => link(row.name, ...row.place), key: (row) => row.key, sort: (row) => row.name },
    { title: "Kind", text: (row) => row.kind, sort: (row) => row.kind },
    number("Waiting", (row) => row.waiting),
    health,
  ], (row) => row.key, "No topic, channel or nsqd of the cluster has this name.");
  return {
    title: "Search",
    node: h("div", {}, heading("Search in the whole cluster"), table.node),
    show: (overview) => table.show(found(overview, searched())),
  };
}

function found(overview, words) {
  const rows = [];
  const add = (kind, name, waits, judged, ...parts) => rows.push({
    kind, name, waiting: waits, health: judged, place: parts, key: [kind, ...parts].join(" "),
  });
  for (const topic of overview.topics) {
    if (matches(words, topic.name)) add("topic", topic.name, waiting(topic), topic.health, "topics", topic.name);
    for (const channel of topic.channels) {
      // A word that only the topic has finds the topic, not each of its channels.
      if (matches(words, topic.name, channel.name) && words.some((word) => includes(channel.name, word))) {
        add("channel", `${topic.name} / ${channel.name}`, channel.depth, channel.health, "topics", topic.name, channel.name);
      }
    }
  }
  for (const node of overview.nodes) {
    if (matches(words, node.name, node.hostname)) add("nsqd", node.name, node.depth, node.health, "nodes", node.name);
  }
  return rows;
}
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    event.preventDefault();
    search.focus();
  }
});

// Which view

let view = null;
const results = searchView();

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function viewOf(pathname) {
  const parts = pathname.slice(base.length).split("/").filter(Boolean).map(decoded);
  const [first, second, third] = parts;
  if (first === "topics" && third !== undefined) return channelView(second, third);
  if (first === "topics" && second !== undefined) return topicView(second);
  if (first === "nodes" && second !== undefined) return nodeView(second);
  return ({ nodes: nodesView, counter: counterView, lookup: lookupView }[first] || topicsView)();
}

function open(focus) {
  view = viewOf(location.pathname);
  search.value = "";
  const section = location.pathname.slice(base.length).split("/")[1] || "topics";
  for (const item of document.querySelectorAll("nav a")) {
    if (item.pathname === `${base}/${section}`) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  place();
  if (focus) view.node.querySelector("h1").focus();
  poll();
}

// Shows the view, or the results of a search.
function place() {
  const main = document.getElementById("main");
  const shown = current();
  document.title = `${shown.title} · nsqadmin`;
  if (main.firstChild !== shown.node) main.replaceChildren(shown.node);
  redraw();
}

const current = () => (searched().length ? results : view);

function go(target) {
  history.pushState(null, "", target);
  open(true);
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href]");
  if (!anchor || event.button || event.ctrlKey || event.metaKey || event.shiftKey || anchor.origin !== location.origin) return;
  if (anchor.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  note("");
  go(anchor.pathname);
});
window.addEventListener("popstate", () => open(true));

// Polling and drawing

let polling = null;
let timer = 0;
let polls = 0;

async function poll() {
  if (polling) await polling;
  clearTimeout(timer);
  polling = pollOnce().catch((error) => console.error(error)); // an error while drawing must not end the polls
  await polling;
  polling = null;
  clearTimeout(timer);
  timer = setTimeout(() => (document.hidden ? undefined : poll()), polls ? POLL_MS : 0);
  polls += 1;
}

document.addEventListener("visibilitychange", () => document.hidden || poll());

async function pollOnce() {
  try {
    // At first, and after a pause, figures of some seconds ago come at once, with those of the last minutes.
    const opening = !seen.overview || Date.now() - seen.asked > PAUSE_MS;
    seen.asked = Date.now();
    seen.overview = await ask("GET", `/api/overview${opening ? "?opening=true" : ""}`);
    if (seen.overview.history) recall(seen.overview.history);
    seen.error = "";
    if (seen.overview.time !== seen.at) rememberAll(seen.overview);
    seen.at = seen.overview.time;
  } catch (error) {
    seen.error = `nsqadmin does not answer: ${error.message}. These are the figures of before.`;
  }
  redraw();
  if (!seen.error) pollDetails(view);
}

// The figures of one topic, channel or nsqd wait for every nsqd that has it; nothing waits for them.
async function pollDetails(asked) {
  if (!asked.poll || asked.polling) return;
  asked.polling = true;
  asked.error = "";
  try {
    await asked.poll();
  } catch (error) {
    asked.error = error.status === 502 ? "" : error.message;
  }
  asked.polling = false;
  if (asked === current()) redraw();
}

function redraw() {
  if (seen.overview && view) current().show(seen.overview);
  showBanner();
}

function showBanner() {
  const lines = [noted, seen.error, view && view.error];
  for (const node of (seen.overview && seen.overview.nodes) || []) {
    if (node.health[0] === 2) lines.push(`nsqd ${node.name} ${node.health[1]}`);
  }
  for (const upstream of (seen.overview && seen.overview.upstreams) || []) {
    // An nsqd that is known is among the nodes.
    if (upstream.error && !find(seen.overview.nodes, upstream.address)) lines.push(`${settings.lookupds ? "nsqlookupd" : "nsqd"} ${upstream.address}: ${upstream.error}`);
  }
  const text = lines.filter(Boolean);
  const banner = document.getElementById("banner");
  if (banner.dataset.shown === text.join("\n")) return;
  banner.dataset.shown = text.join("\n");
  banner.replaceChildren(...text.map((line) => h("p", {}, line)));
}

// Dark and light

const theme = document.getElementById("theme");
try {
  if (localStorage.theme) document.documentElement.dataset.theme = localStorage.theme;
} catch { /* no storage: the system's choice holds */ }
theme.addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.theme = document.documentElement.dataset.theme; } catch { /* for this page only */ }
});

open(false);
