// Voices of one's own: a recorded or chosen sample goes to the server, which makes a voice of it.

const LONGEST_MS = 29_000; // the server takes 30 s
const $ = (id) => document.getElementById(id);

let sample = null; // a File
let recording = null; // { recorder, clock }

// `ask` is fetch with the key; `changed(id)` is told of a voice that was added, or null after one was deleted.
export function setUpVoices(ask, changed) {
  const tell = (message, bad = false) => {
    $("voice-note").textContent = message;
    $("voice-note").classList.toggle("bad", bad);
  };
  const show = () => {
    $("record").textContent = recording ? "Stop recording" : "Record";
    $("add-voice").disabled = !(sample && $("voice-name").value.trim() && $("consent").checked) || Boolean(recording);
  };

  const take = (file) => {
    sample = file;
    URL.revokeObjectURL($("sample").src);
    $("sample").hidden = !file;
    if (file) $("sample").src = URL.createObjectURL(file);
    show();
  };

  const record = async () => {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({
        audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false },
      });
    } catch {
      tell("The browser gave no microphone.", true);
      return;
    }
    const recorder = new MediaRecorder(stream);
    const pieces = [];
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.onstop = () => {
      clearInterval(recording.clock);
      recording = null;
      stream.getTracks().forEach((track) => track.stop());
      take(new File(pieces, "recording", { type: recorder.mimeType }));
      tell("Listen to it, then add it.");
    };
    recorder.start();
    const started = performance.now();
    const tick = () => {
      const passed = performance.now() - started;
      tell(`Recording, ${Math.floor(passed / 1000)} s. Read a sentence or two; 5 to 15 seconds are best.`);
      if (passed > LONGEST_MS) recorder.stop();
    };
    recording = { recorder, clock: setInterval(tick, 200) };
    tick();
    show();
  };

  $("record").hidden = !navigator.mediaDevices; // browsers hide microphones from pages without HTTPS
  $("record").onclick = () => (recording ? recording.recorder.stop() : record());
  $("sample-file").onchange = () => take($("sample-file").files[0] ?? null);
  $("voice-name").oninput = $("consent").onchange = show;

  $("voice-form").onsubmit = async (event) => {
    event.preventDefault();
    const form = new FormData();
    form.append("name", $("voice-name").value.trim());
    form.append("consent", `Confirmed on the page, ${new Date().toISOString()}`);
    form.append("ref_text", $("ref-text").value.trim());
    form.append("audio_sample", sample);
    $("add-voice").disabled = true;
    tell("Listening to the sample …");
    try {
      const answer = await ask("/v1/audio/voices", { method: "POST", body: form });
      const voice = await answer.json();
      $("voice-form").reset();
      take(null);
      await changed(voice.id);
      tell(`${voice.name} can speak now.`);
    } catch (error) {
      tell(error.message, true);
      show();
    }
  };

  $("delete-voice").onclick = async () => {
    const chosen = $("voice").selectedOptions[0];
    if (!chosen?.value || !confirm(`Delete the voice ${chosen.text}?`)) return;
    try {
      await ask(`/v1/audio/voices/${encodeURIComponent(chosen.value)}`, { method: "DELETE" });
      await changed(null);
      tell("The voice is deleted.");
    } catch (error) {
      tell(error.message, true);
    }
  };
  $("cloning").hidden = false;
  show();
}
