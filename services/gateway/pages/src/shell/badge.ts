/** The number of pending approvals on the icon of the tab, and on that of an installed page. */

const SIZE = 32;

interface Badged {
  setAppBadge?(count: number): Promise<void>;
}

export function showBadge(count: number): void {
  void (navigator as Badged).setAppBadge?.(count)?.catch(() => undefined);
  const link = document.querySelector<HTMLLinkElement>("link[rel=icon]");
  if (!link) return;
  const drawn = count > 0 ? draw(count) : null;
  link.type = drawn ? "image/png" : "image/svg+xml";
  link.href = drawn ?? "/icon.svg";
}

function draw(count: number): string | null {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const context = canvas.getContext("2d");
  if (!context) return null;
  context.fillStyle = "#9a6700";
  context.beginPath();
  context.arc(SIZE / 2, SIZE / 2, SIZE / 2, 0, 2 * Math.PI);
  context.fill();
  context.fillStyle = "#fff";
  context.font = `bold ${count > 9 ? 17 : 22}px sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(count > 99 ? "99" : String(count), SIZE / 2, SIZE / 2 + 1);
  return canvas.toDataURL("image/png");
}
