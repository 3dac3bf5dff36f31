// Theme: dark or light as the system says, or as the button does; the choice is kept on this machine.
"use strict";

const THEMES = ["auto", "light", "dark"];
const THEME_NAME = "octavo-theme";

class Theme {
  /** `onChange` when colours have changed, whoever changed them. */
  constructor(onChange) {
    this.onChange = onChange;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
    byId("theme").addEventListener("click", () => {
      this.#set(THEMES[(THEMES.indexOf(this.#name) + 1) % THEMES.length]);
      onChange();
    });
    this.#set(THEMES.find((name) => name === localStorage.getItem(THEME_NAME)) ?? "auto");
  }

  #name = "auto";

  #set(name) {
    this.#name = name;
    localStorage.setItem(THEME_NAME, name);
    document.documentElement.dataset.theme = name;
    setText(byId("theme-name"), name);
    byId("theme").setAttribute("aria-label", `Theme: ${name}`);
  }
}
