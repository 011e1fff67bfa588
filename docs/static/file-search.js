// A page that was opened as a file may not fetch others: the search then shows no excerpts of what it finds.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS === "object") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
