/** Notifications of new approvals: of the system and as a sound, each only if the user of this browser wants it. */

import { line } from "../parts/format";
import { router } from "../shell/router.svelte";
import type { Approval } from "./pending.svelte";
import { pending } from "./pending.svelte";

function stored(name: string): boolean {
  try {
    return localStorage.getItem(`sandherd.${name}`) === "on";
  } catch {
    return false;
  }
}

function store(name: string, on: boolean): void {
  try {
    localStorage.setItem(`sandherd.${name}`, on ? "on" : "off");
  } catch {
    // Then the choice lasts as long as the page.
  }
}

class Notifications {
  readonly possible = typeof Notification !== "undefined";
  notify = $state(stored("notify") && this.possible && Notification.permission === "granted");
  sound = $state(stored("sound"));
  refused = $state(false);

  async setNotify(on: boolean): Promise<void> {
    if (on && this.possible && Notification.permission !== "granted") await Notification.requestPermission();
    this.refused = on && (!this.possible || Notification.permission !== "granted");
    this.notify = on && !this.refused;
    store("notify", this.notify);
  }

  setSound(on: boolean): void {
    this.sound = on;
    store("sound", on);
    if (on) this.#play();
  }

  /** Notify of what arrives while the page is open; the badge of an installed page shows the number. */
  watch(): () => void {
    return pending.onArrival((approvals) => {
      if (this.sound) this.#play();
      if (this.notify && document.hidden) this.#show(approvals);
    });
  }

  #show(approvals: Approval[]): void {
    const [first] = approvals;
    if (!first) return;
    const text = approvals.length > 1 ? `${approvals.length} approvals wait for you` : `${line(first.tool, 60)} in ${first.sandbox}`;
    const shown = new Notification("Sandherd: approval", { body: text, tag: "sandherd-approvals" });
    shown.onclick = () => {
      focus();
      router.go("/approvals");
      shown.close();
    };
  }

  /** Two short tones. Browsers play none before the page was clicked once. */
  #play(): void {
    try {
      const context = new AudioContext();
      [660, 880].forEach((frequency, index) => {
        const tone = context.createOscillator();
        const volume = context.createGain();
        tone.frequency.value = frequency;
        volume.gain.value = 0.06;
        tone.connect(volume).connect(context.destination);
        tone.start(context.currentTime + index * 0.14);
        tone.stop(context.currentTime + index * 0.14 + 0.12);
      });
      setTimeout(() => void context.close(), 1000);
    } catch {
      // A browser without sound.
    }
  }
}

export const notifications = new Notifications();
