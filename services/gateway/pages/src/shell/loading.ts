/** Loading parts of the pages: if a part can't be loaded, the page is reloaded before an error is shown. */

/** The delays in milliseconds after which the gateway is asked whether it can be reached. */
const DELAYS = [300, 1000, 3000];
/** The shortest time in milliseconds between two reloads: a part may be missing for longer. */
const RELOADED_MS = 60_000;
const KEY = "sandherd.reloaded";

export const browser = {
  pause: (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms)),
  isReachable: () => fetch("/", { cache: "no-store" }).then((reply) => reply.ok, () => false),
  lastReload: () => Number(sessionStorage.getItem(KEY) ?? 0),
  reload: () => {
    sessionStorage.setItem(KEY, String(Date.now()));
    location.reload();
  },
};

/**
 * What `load` imports. A browser requests a module that failed only once, and after a new release the files that this
 * page names no longer exist: so the page is reloaded, at most once a minute, and only if the gateway can be reached,
 * because otherwise an error of the browser would replace the page. Rejects with the error of `load`.
 */
export async function loaded<T>(load: () => Promise<T>, by: typeof browser = browser): Promise<T> {
  try {
    return await load();
  } catch (error) {
    const mayReload = () => Date.now() - by.lastReload() >= RELOADED_MS;
    if (mayReload() && (await isReached(by)) && mayReload()) {
      by.reload();
      return new Promise(() => undefined);
    }
    throw error;
  }
}

async function isReached(by: typeof browser): Promise<boolean> {
  for (const delay of DELAYS) {
    await by.pause(delay);
    if (await by.isReachable()) return true;
  }
  return false;
}
