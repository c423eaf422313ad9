const box = document.querySelector("nav input");
box.hidden = false;
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(" ");
  for (const list of document.querySelectorAll("nav ul")) {
    let found = false;
    for (const item of list.children) {
      const text = (item.textContent + " " + item.dataset.where).toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      found ||= !item.hidden;
    }
    list.hidden = list.previousElementSibling.hidden = !found;
  }
});
