// Light or dark, before anything is painted: as chosen on an earlier visit, else as the system has it.
(function () {
  let chosen = null;
  try { chosen = localStorage.getItem("thinwire-scheme"); } catch (error) { /* files may have no storage */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.scheme = chosen === "light" || chosen === "dark" ? chosen : dark ? "dark" : "light";
})();
