// Sound as it comes: plays it without gaps, keeps it, draws it. Knows nothing of the server.

export const RATE = 24000; // Hz
const LEAD = 0.08; // seconds between the first piece's arrival and its sound
const BAR = RATE / 20; // samples
const FULL = 0.7; // of the scale: the height of the canvas

export class Player {
  constructor() {
    this.context = new AudioContext({ sampleRate: RATE });
    this.pieces = []; // Int16Array
    this.samples = 0;
    this.bars = []; // the loudest sample of each 50 ms, 0 to 1
    this.open = { peak: 0, samples: 0 }; // the bar that isn't full
    this.next = 0; // when the next piece sounds, in the context's time
    this.half = null; // a byte whose other half hasn't come
    this.sources = new Set();
    this.stopped = null; // how much had been heard when it was stopped
  }

  // Plays bytes of little-endian 16-bit samples.
  push(bytes) {
    if (this.half !== null) {
      const joined = new Uint8Array(bytes.length + 1);
      joined[0] = this.half;
      joined.set(bytes, 1);
      bytes = joined;
    }
    this.half = bytes.length % 2 ? bytes[bytes.length - 1] : null;
    const piece = new Int16Array(bytes.slice(0, bytes.length - (bytes.length % 2)).buffer);
    if (!piece.length) return;
    this.pieces.push(piece);
    this.samples += piece.length;
    this.measure(piece);
    this.play(piece);
  }

  play(piece) {
    const buffer = this.context.createBuffer(1, piece.length, RATE);
    buffer.getChannelData(0).set(Float32Array.from(piece, (sample) => sample / 32768));
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.context.destination);
    if (this.next < this.context.currentTime) this.next = this.context.currentTime + LEAD;
    source.start(this.next);
    this.next += buffer.duration;
    this.sources.add(source);
    source.onended = () => this.sources.delete(source);
  }

  measure(piece) {
    for (const sample of piece) {
      this.open.peak = Math.max(this.open.peak, Math.abs(sample) / 32768);
      if (++this.open.samples === BAR) {
        this.bars.push(this.open.peak);
        this.open = { peak: 0, samples: 0 };
      }
    }
  }

  get seconds() {
    return this.samples / RATE;
  }

  // How much of it was heard, in seconds.
  get heard() {
    const ahead = Math.max(0, this.next - this.context.currentTime);
    return this.stopped ?? Math.max(0, this.seconds - ahead);
  }

  get playing() {
    return this.next > this.context.currentTime && this.context.state !== "closed";
  }

  stop() {
    this.stopped ??= this.heard;
    for (const source of this.sources) source.stop();
    this.next = 0;
    return this.context.state === "closed" ? undefined : this.context.close();
  }

  wav() {
    const header = new DataView(new ArrayBuffer(44));
    const size = 2 * this.samples;
    const write = (at, letters) => [...letters].forEach((letter, n) => header.setUint8(at + n, letter.charCodeAt(0)));
    write(0, "RIFF");
    header.setUint32(4, 36 + size, true);
    write(8, "WAVEfmt ");
    header.setUint32(16, 16, true);
    header.setUint16(20, 1, true);
    header.setUint16(22, 1, true);
    header.setUint32(24, RATE, true);
    header.setUint32(28, 2 * RATE, true);
    header.setUint16(32, 2, true);
    header.setUint16(34, 16, true);
    write(36, "data");
    header.setUint32(40, size, true);
    return new Blob([header, ...this.pieces], { type: "audio/wav" });
  }
}

// Draws the whole waveform, what was heard of it in another colour; without a player, a line.
export function draw(canvas, player) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  const colours = getComputedStyle(canvas);
  pen.clearRect(0, 0, width, height);
  const step = 5 * scale;
  const places = Math.floor(width / step);
  const bars = player?.bars ?? [];
  const heard = player ? player.heard / (BAR / RATE) : 0;
  const share = Math.max(1, bars.length / places); // bars drawn as one
  for (let place = 0; place < places; place++) {
    const from = Math.floor(place * share);
    const loudness = Math.max(0, ...bars.slice(from, Math.max(from + 1, Math.floor((place + 1) * share))));
    const tall = Math.max(2 * scale, Math.min(1, loudness / FULL) * height);
    pen.fillStyle = colours.getPropertyValue(from < bars.length ? (from < heard ? "--accent" : "--unplayed") : "--line");
    pen.beginPath();
    pen.roundRect(place * step, (height - tall) / 2, 3 * scale, tall, 1.5 * scale);
    pen.fill();
  }
}
