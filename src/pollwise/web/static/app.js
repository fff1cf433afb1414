// Makes pages live: keeps a stream of Server-Sent Events open while the page is visible, and puts
// the new contents into place.
"use strict";

(() => {
  const main = document.getElementById("main");
  if (!document.body.hasAttribute("data-live") || !main) return;
  let stream = null;
  const open = () => {
    if (stream || document.hidden) return;
    stream = new EventSource(location.href);
    stream.addEventListener("main", (event) => { main.innerHTML = event.data; });
    stream.addEventListener("login", () => location.reload());
  };
  const close = () => { if (stream) { stream.close(); stream = null; } };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  open();
})();
