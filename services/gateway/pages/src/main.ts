import { mount } from "svelte";
import "./shell/tokens.css";
import "./shell/base.css";
import App from "./App.svelte";
import { applyTheme, storedTheme } from "./shell/theme";

applyTheme(storedTheme());
const target = document.getElementById("app");
if (target) {
  target.replaceChildren(); // the text of index.html, which stays if this script can't be loaded
  mount(App, { target });
}
