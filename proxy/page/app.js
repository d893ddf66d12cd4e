// The page: what the fields say goes to the server, what comes back goes to the player.

import { draw, Player } from "/page/player.js";
import { setUpVoices } from "/page/voices.js";

const PROTOCOL = "nari.speech.v1";
const KEY = "qwen3-tts-key"; // in sessionStorage
const $ = (id) => document.getElementById(id);

let player = null;
let run = null; // what is being spoken: { abort } or { socket }, and its numbers
let spoken = null; // the fields of the last whole text, for its MP3
let cloning = false; // whether all voices are ones that people add

// ---- what is shown

// idle; waiting for the first sound; speaking: sound comes; playing: all of it is here; error
function show(state) {
  document.body.dataset.state = state;
  const busy = state === "waiting" || state === "speaking";
  const live = $("live").checked;
  $("speak").textContent = live ? (busy ? "End of text" : "Start") : "Speak";
  $("speak").disabled = busy && !(live && run && !run.ended);
  $("stop").disabled = !busy && state !== "playing";
  $("live").disabled = busy;
  $("wav").disabled = busy || !player?.samples;
  $("mp3").disabled = busy || !player?.samples || !spoken;
  $("mp3").title = player?.samples && !spoken ? "Live speech can't be made again; take the WAV" : "";
}

function complain(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function showNumbers() {
  const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);
  $("first").textContent = run?.first ? seconds(run.first - run.started) : "–";
  $("length").textContent = player?.samples ? `${player.seconds.toFixed(2)} s` : "–";
  $("seed").textContent = run?.seed ?? "–";
  const took = run?.done && (run.done - run.started) / 1000;
  // Live text is as slow as its writer, so a factor would say nothing of the server.
  $("factor").textContent = took && player.seconds && !run.socket ? (took / player.seconds).toFixed(2) : "–";
}

function animate() {
  draw($("wave"), player);
  if (document.body.dataset.state === "playing" && !player.playing) show("idle");
  requestAnimationFrame(animate);
}

// ---- the key

const key = () => sessionStorage.getItem(KEY);
const credentials = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

// Resolves to whether the user gave one.
function askForKey(why) {
  $("ask-why").textContent = why;
  $("key").value = "";
  $("ask").showModal();
  return new Promise((resolve) => {
    const finish = (given) => {
      $("ask").onclose = null;
      $("ask").close();
      resolve(given);
    };
    $("ask-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, $("key").value.trim());
      finish(true);
    };
    $("ask-cancel").onclick = () => finish(false);
    $("ask").onclose = () => resolve(false); // Esc
  });
}

// fetch with the key, which is asked for as long as the server doesn't take it. Throws what to tell the user.
async function ask(path, options = {}) {
  for (;;) {
    let answer;
    try {
      answer = await fetch(path, { ...options, headers: { ...options.headers, ...credentials() } });
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error("The server can't be reached.");
    }
    if (answer.ok) return answer;
    const body = await answer.json().catch(() => null);
    const message = body?.error?.message ?? `The server answered ${answer.status}.`;
    if (answer.status !== 401) throw new Error(message);
    const why = key() ? "The server didn't take this key." : "This server asks for a key. It is kept until you close this tab.";
    if (!(await askForKey(why))) throw new Error(message);
    await showVoices($("voice").value);
  }
}

// ---- speaking a whole text

function fields() {
  const chosen = {
    voice: $("voice").value,
    language: $("language").value,
    instructions: $("instructions").value.trim(),
    speed: speed(),
  };
  return Object.fromEntries(Object.entries(chosen).filter(([, value]) => value !== ""));
}

const speed = () => Number((2 ** Number($("speed").value)).toFixed(2));

const body = (request) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(request),
});

async function begin(how) {
  complain("");
  $("note").textContent = "";
  await player?.stop();
  player = new Player();
  run = { ...how, started: performance.now(), first: null, done: null, seed: null, ended: false };
  spoken = null;
  show("waiting");
  showNumbers();
  return run;
}

function hear(mine, bytes) {
  if (run !== mine || !bytes.length) return;
  if (!mine.first) {
    mine.first = performance.now();
    show("speaking");
  }
  player.push(bytes);
  showNumbers();
}

function finish(mine, error) {
  if (run !== mine) return;
  mine.done = performance.now();
  mine.ended = true;
  showNumbers();
  if (error) complain(error);
  show(error ? "error" : player.playing ? "playing" : "idle");
}

async function speak() {
  if (!$("text").value.trim()) {
    complain("There is nothing to say yet.");
    $("text").focus();
    return;
  }
  const abort = new AbortController();
  const mine = await begin({ abort });
  const request = { input: $("text").value, ...fields() };
  try {
    const answer = await ask("/v1/audio/speech", {
      ...body({ ...request, response_format: "pcm" }),
      signal: abort.signal,
    });
    mine.seed = answer.headers.get("x-seed");
    spoken = { ...request, seed: mine.seed };
    const reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      hear(mine, value);
    }
    finish(mine, null);
  } catch (error) {
    if (abort.signal.aborted) return;
    // A failure after the headers breaks the connection: that is all that raw sound can say.
    finish(mine, mine.seed ? "The speech broke off: the server failed midway." : error.message);
  }
}

// ---- live text

async function startLive() {
  const mine = await begin({ sent: "", sequence: 0, configured: false });
  try {
    await ask("/v1/models"); // a browser isn't told why a WebSocket was refused
  } catch (error) {
    finish(mine, error.message);
    return;
  }
  if (run !== mine) return;
  const protocols = key() ? [PROTOCOL, `api-key.${key()}`] : [PROTOCOL];
  const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/audio/speech/ws`;
  let socket;
  try {
    socket = new WebSocket(address, protocols);
  } catch {
    finish(mine, "A browser can't send this key for live text: it has a character that no WebSocket header takes.");
    return;
  }
  mine.socket = socket;
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => {
    if (typeof data !== "string") {
      hear(mine, new Uint8Array(data));
      return;
    }
    const event = JSON.parse(data);
    if (event.type === "session.created") say(mine, "request.start", { ...fields(), response_format: "pcm" });
    if (event.type === "request.configured") {
      mine.configured = true;
      sendText();
      if (mine.ending) endText();
    }
    if (event.type === "response.done") finish(mine, null);
    if (event.type === "error") finish(mine, event.error.message);
  };
  socket.onclose = () => {
    if (!mine.done) finish(mine, "The connection was lost.");
  };
}

const say = (mine, type, more) => mine.socket.send(JSON.stringify({ type, ...more }));

// Sends what was written, but for the word that is being written: it may still change.
function sendText(complete = false) {
  if (!run?.configured || run.ended) return;
  const text = $("text").value;
  if (!text.startsWith(run.sent)) {
    $("text").value = run.sent;
    $("note").textContent = "What was sent can't be changed any more.";
    return;
  }
  const rest = text.slice(run.sent.length);
  const ready = complete ? rest : rest.slice(0, rest.search(/\S*$/));
  if (!ready) return;
  if (!run.sent.trim() && ready.trim()) run.started = performance.now(); // the clock starts with the first word
  run.sent += ready;
  say(run, "input_text.append", { sequence: run.sequence++, text: ready });
}

function endText() {
  if (!run.configured) {
    run.ending = true;
    return;
  }
  sendText(true);
  say(run, "input_text.end", { sequence: run.sequence++ });
  run.ended = true;
  $("text").select(); // the next text takes its place
  show(document.body.dataset.state);
}

// ---- what the user does

const busy = () => ["waiting", "speaking"].includes(document.body.dataset.state);

function go() {
  if (!$("live").checked) {
    if (!busy()) speak();
  } else if (!busy()) {
    startLive();
    $("text").focus();
  } else if (!run.ended) {
    endText();
  }
}

function stop() {
  const mine = run;
  run = null;
  mine?.abort?.abort();
  if (mine?.socket?.readyState === WebSocket.OPEN && !mine.done) say(mine, "response.cancel");
  mine?.socket?.close();
  player?.stop();
  show("idle");
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function saveMp3() {
  $("mp3").disabled = true;
  $("note").textContent = "Making the MP3 …";
  try {
    // The seed as a number of JSON: JavaScript's own would lose digits.
    const { seed, ...rest } = spoken;
    const request = JSON.stringify({ ...rest, response_format: "mp3", stream: false });
    const answer = await ask("/v1/audio/speech", { ...body({}), body: `${request.slice(0, -1)},"seed":${seed}}` });
    save(await answer.blob(), "speech.mp3");
    $("note").textContent = "";
  } catch (error) {
    $("note").textContent = "";
    complain(error.message);
  }
  show(document.body.dataset.state);
}

const title = (word) => word.replace(/(^|[\s_])\S/g, (letter) => letter.toUpperCase()).replaceAll("_", " ");

// With the key, where there is one: it may have voices of its own.
async function showVoices(chosen) {
  const answer = await fetch("/v1/audio/voices", { headers: credentials() });
  const { voices } = await answer.json();
  const options = voices.map(({ id, name, language }) => new Option(cloning ? name : `${name} · ${title(language)}`, id));
  const none = cloning ? "Add a voice below" : "As described";
  $("voice").replaceChildren(...(options.length ? options : [new Option(none, "")]));
  if (voices.some(({ id }) => id === chosen)) $("voice").value = chosen;
}

async function load() {
  for (;;) {
    const answer = await fetch("/page/choices.json").catch(() => null);
    if (answer?.ok) {
      const { languages, needs_key, clones } = await answer.json();
      cloning = clones;
      await showVoices();
      if (clones) setUpVoices(ask, showVoices);
      $("language").replaceChildren(new Option("Automatic", ""));
      $("language").append(...languages.filter((name) => name !== "auto").map((name) => new Option(title(name), name)));
      $("server").textContent = needs_key ? "ready, with a key" : "ready";
      $("server").classList.add("ready");
      return;
    }
    $("server").textContent = answer ? "the model is loading" : "no connection";
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

$("speak").onclick = go;
$("stop").onclick = stop;
$("wav").onclick = () => save(player.wav(), "speech.wav");
$("mp3").onclick = saveMp3;
$("live").onchange = () => {
  $("text").placeholder = $("live").checked ? "Write, and each word is spoken as soon as it is done." : "What shall I say?";
  show(document.body.dataset.state);
};
$("text").oninput = () => {
  $("note").textContent = "";
  if (!$("live").checked) return;
  if (!busy()) startLive();
  else sendText();
};
$("speed").oninput = () => {
  const shown = `${Number(speed().toFixed(2))}×`;
  $("speed-shown").textContent = shown;
  $("speed").setAttribute("aria-valuetext", shown);
};
document.addEventListener("keydown", (event) => {
  if ($("ask").open) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    go();
  }
  if (event.key === "Escape" && !$("stop").disabled) stop();
});

show("idle");
animate();
load();
