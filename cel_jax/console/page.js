"use strict";
// The page shows what the desk says and sends what the operator does; it decides nothing. Text goes in by textContent.
const EVERY_MS = 400, PATIENCE_MS = 6000;
const by = (id) => document.getElementById(id);
let token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("token") || "";
if (token) { sessionStorage.setItem("token", token); history.replaceState(null, "", location.pathname); }
let seen = { stations: [], episodes: [] }, chosen = 0, lastLabelled = "";

async function ask(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const options = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) };
  const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS) });
  const values = await answer.json();
  if (!answer.ok) throw new Error(values.error);
  return values;
}

function say(text, bad) {
  by("said").textContent = text;
  by("said").className = bad ? "bad" : "";
}

async function act(name, body, done) {
  const author = by("author").value.trim();
  try {
    // a stop never waits for a name
    const urgent = name === "stop" && !author ? "unnamed operator" : author;
    if (!urgent) { by("author").focus(); throw new Error("type your name first"); }
    const values = await ask(`/api/${name}`, { ...body, author: urgent });
    say(done);
    await look();
    return values;
  } catch (error) { say(`${name}: ${error.message}`, true); return null; }
}

const episodesOf = (tile) => seen.episodes.filter((one) => one.station === tile.station);
const toLabel = (tile) =>
  (episodesOf(tile).find((one) => one.phase === "waiting") || {}).episode || (tile.state === "running" ? tile.episode : "");
const toUndo = (tile) => episodesOf(tile).filter((one) => one.phase === "pending").map((one) => one.episode).pop() || "";

async function label(tile, outcome) {
  const episode = toLabel(tile);
  if (!episode) return say(`${tile.station}: no episode to label`, true);
  const reason = outcome === "discard" ? prompt("Why is it discarded? (a bad reset, hardware, an operator's error)") : "";
  if (outcome === "discard" && !reason) return undefined;
  if (await act("label", { episode, outcome, reason }, `${episode}: ${outcome}; u undoes it for 10 s`)) lastLabelled = episode;
  return undefined;
}

const start = (tile) => act("start", { station: tile.station }, `${tile.station} starts`);
const stop = (names) => act("stop", { stations: names }, `stop: ${names.join(", ") || "all"}`);
const release = (names) => act("release", { stations: names }, `released: ${names.join(", ") || "all"}`);

function undo(tile) {
  const pending = seen.episodes.filter((one) => one.phase === "pending").map((one) => one.episode);
  const episode = pending.includes(lastLabelled) ? lastLabelled : toUndo(tile);
  if (!episode) return say("no label that could still be undone", true);
  return act("undo", { episode }, `${episode}: its label is undone`);
}

const KEYS = {
  Enter: start, s: (tile) => label(tile, "success"), f: (tile) => label(tile, "failure"),
  d: (tile) => label(tile, "discard"), u: undo, x: (tile) => stop([tile.station]), r: (tile) => release([tile.station]),
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { event.preventDefault(); stop([]); return; }
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  const many = seen.stations.length, tile = seen.stations[chosen];
  if (event.key === "R") release([]);
  else if (/^[1-9]$/.test(event.key) && Number(event.key) <= many) chosen = Number(event.key) - 1;
  else if (event.key === "ArrowRight" && many) chosen = (chosen + 1) % many;
  else if (event.key === "ArrowLeft" && many) chosen = (chosen + many - 1) % many;
  else if (KEYS[event.key] && tile) { event.preventDefault(); KEYS[event.key](tile); }
  draw();
});

function put(parent, tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return parent.appendChild(made);
}

function button(row, text, className, enabled, run) {
  const made = put(row, "button", text, className);
  made.disabled = !enabled;
  made.addEventListener("click", (event) => { event.stopPropagation(); made.blur(); run(); });
}

function look_of(tile) {
  if (tile.stop) return "stopped";
  if (tile.state === "waiting for label") return "label";
  return { running: "running", away: "away" }[tile.state] || "";
}

function draw() {
  const place = by("tiles");
  place.replaceChildren();
  seen.stations.forEach((tile, index) => {
    const box = put(place, "section", "", `tile ${look_of(tile)} ${index === chosen ? "chosen" : ""}`);
    box.addEventListener("click", () => { chosen = index; draw(); });
    const head = put(box, "h2", "");
    put(head, "span", `${index + 1}  ${tile.station}`);
    put(head, "span", tile.stop ? `${tile.state}` : tile.state);
    if (tile.episode) put(box, "p", `episode ${tile.episode}`, "small");
    const version = tile.policy_version >= 0 ? `, policy v${tile.policy_version}` : "";
    put(box, "p", `${tile.since_s.toFixed(0)} s in this state, step ${tile.steps}${version}`, "small");
    if (tile.cause) put(box, "p", `${tile.failures ? `failed ${tile.failures} times: ` : ""}${tile.cause}`, "cause");
    for (const one of episodesOf(tile)) put(box, "p", words(one), "small");
    const row = put(box, "div", "", "row"), some = toLabel(tile) !== "";
    button(row, "start", "", tile.state === "waiting for start", () => start(tile));
    button(row, "success", "success", some, () => label(tile, "success"));
    button(row, "failure", "failure", some, () => label(tile, "failure"));
    button(row, "discard", "", some, () => label(tile, "discard"));
    button(row, "undo", "", toUndo(tile) !== "", () => undo(tile));
    if (tile.stop) button(row, "release", "", true, () => release([tile.station]));
    else button(row, "STOP", "stop", true, () => stop([tile.station]));
  });
}

function words(one) {
  const left = `${one.left_s.toFixed(0)} s`;
  if (one.phase === "waiting") return `${one.episode} waits for its label, ${left} left${one.suggests ? `; the robot says ${one.suggests}` : ""}`;
  const said = `${one.episode}: ${one.outcome}${one.reason ? ` (${one.reason})` : ""} by ${one.author}`;
  return one.phase === "pending" ? `${said}; undo for ${left}` : said;
}

async function look() {
  try {
    seen = await ask("/api/tiles");
    by("title").textContent = `${seen.run}: ${seen.phase}`;
    if (by("said").textContent.startsWith("lost:")) say("");
  } catch (error) { say(`lost: ${error.message}. What you see is old`, true); }
  draw();
}

async function turn() {
  await look();
  setTimeout(turn, EVERY_MS);
}

by("author").value = localStorage.getItem("author") || "";
by("author").addEventListener("change", () => localStorage.setItem("author", by("author").value.trim()));
by("author").addEventListener("keydown", (event) => { if (event.key === "Enter") by("author").blur(); });
by("stop-all").addEventListener("click", (event) => { event.target.blur(); stop([]); });
by("release-all").addEventListener("click", (event) => { event.target.blur(); release([]); });
turn();
