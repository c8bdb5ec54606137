"use strict";
// The resolved configs of the methods as files.
const settings = (() => {
  const file = (name) => `${name.replaceAll(/[^\p{L}\p{N}+.]+/gu, "-").replaceAll(/^-|-$/g, "")}.yaml`;

  /** Let the buttons beside the names save configs.
   *
   * @param configs a name and a text each.
   * @param save keeps a text as a file.
   */
  function offer(configs, save) {
    for (const button of document.querySelectorAll("[data-config]")) {
      const [name, text] = configs[button.dataset.config];
      button.addEventListener("click", () => save(file(name), text));
    }
  }
  return { offer };
})();
