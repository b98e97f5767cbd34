(() => {
  const every = 5000;
  const deadline = 10000;
  let running = false;
  const lost = (why) => {
    const time = document.getElementById("time");
    if (!time.classList.contains("lost")) {
      time.textContent = "Not up to date since " + time.textContent + ": " + why;
      time.classList.add("lost");
    }
  };
  const load = async () => {
    const signal = AbortSignal.timeout(deadline);
    const answer = await fetch(location.href, { cache: "no-store", signal });
    if (!answer.ok) return lost("the node answers " + answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const page = fresh.getElementById("page");
    if (!page) return lost("the node answers with something else");
    document.getElementById("page").replaceWith(page);
    document.title = fresh.title;
  };
  const refresh = async () => {
    if (document.hidden || running) return;
    running = true;
    await load().catch(() => lost("the node does not answer"));
    running = false;
  };
  const again = () => refresh().finally(() => setTimeout(again, every));
  setTimeout(again, every);
  document.addEventListener("visibilitychange", refresh);
})();
