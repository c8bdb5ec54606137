"use strict";
// The commands that run the methods again, for the clipboard.
const repeating = (() => {
  /** Put a text on the clipboard; pages from other machines lack the newer way. */
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text, readOnly: true });
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }
  /** Let the buttons copy.
   *
   * @param texts `methods` in their order, and that of the `study`.
   */
  function offer({ methods, study }) {
    for (const button of document.querySelectorAll("[data-copy]")) {
      const which = button.dataset.copy;
      button.addEventListener("click", async () => {
        const text = which === "study" ? study : which === "all" ? methods.filter(Boolean).join("\n") : methods[which];
        const lines = text.split("\n").length - 1;
        const said = (await copy(text)) ? `${lines} lines copied` : "the browser has refused to copy";
        document.getElementById("copied").textContent = said;
        button.focus();
      });
    }
  }
  return { offer };
})();
