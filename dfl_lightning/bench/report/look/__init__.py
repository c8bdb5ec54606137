"""The look of pages and charts: colours, dashes and shapes."""
