"""Templates of the page, and the function that fills them."""
