"""Tables of a study: measures, formats, pictures and the page."""
