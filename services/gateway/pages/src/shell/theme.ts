/** The theme: that of the system, unless one was chosen; the choice is stored in this browser. */

export const THEMES = ["system", "light", "dark", "contrast"] as const;
export type Theme = (typeof THEMES)[number];

const KEY = "sandherd.theme";

export function storedTheme(): Theme {
  try {
    const found = localStorage.getItem(KEY) as Theme | null;
    return found && THEMES.includes(found) ? found : "system";
  } catch {
    return "system";
  }
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset["theme"] = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // A browser without storage has the theme for this page only.
  }
}
