// Palette: the colours of the page as numbers that a canvas takes. They are those of colours.css in the present theme; owners
// get hues of their own, a golden angle apart and in three lightnesses, so that neighbours differ without hue too.
"use strict";

const GOLDEN_ANGLE = 137.508;
const COLOURS = ["panel", "ink", "muted", "line", "held", "cached", "free", "mark", "alarm", "output", "prompt"];
const GROUP_COLOURS = ["--group-0", "--group-1", "--group-2", "--group-3", "--group-4", "--group-5"];

class Palette {
  constructor() {
    this.#probe.hidden = true;
    document.body.append(this.#probe);
    this.read();
  }

  #probe = element("span");
  #owners = new Map();

  /** Take the colours over from the style sheet, after the theme changed. */
  read() {
    this.#owners.clear();
    const rgb = (name) => {
      this.#probe.style.color = `var(${name})`;
      return getComputedStyle(this.#probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    };
    this.isDark = rgb("--ink")[0] > 128;
    for (const name of COLOURS) this[name] = rgb(`--${name}`);
    this.groups = GROUP_COLOURS.map(rgb);
  }

  /** The colour of a sequence by its handle. */
  owner(handle) {
    let colour = this.#owners.get(handle);
    if (colour === undefined) {
      const lightness = (this.isDark ? [0.75, 0.64, 0.85] : [0.58, 0.47, 0.68])[handle % 3];
      colour = oklch(lightness, 0.13, (handle * GOLDEN_ANGLE) % 360);
      if (this.#owners.size > 4096) this.#owners.clear();
      this.#owners.set(handle, colour);
    }
    return colour;
  }

  group(index) {
    return this.groups[index % this.groups.length];
  }
}

/** A colour between two: all of the first at 0, all of the second at 1. */
function mix(first, second, part) {
  return first.map((value, index) => Math.round(value + (second[index] - value) * part));
}

function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

/** As one pixel of ImageData read in words, on little-endian machines, which all that run browsers are. */
function pixel([red, green, blue]) {
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

/** A colour of OKLCH (Ottosson, "A perceptual color space for image processing", 2020) in sRGB, cut to its range. */
function oklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos((degrees * Math.PI) / 180);
  const b = chroma * Math.sin((degrees * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((value) => {
    const cut = Math.min(1, Math.max(0, value));
    return Math.round(255 * (cut <= 0.0031308 ? 12.92 * cut : 1.055 * cut ** (1 / 2.4) - 0.055));
  });
}
