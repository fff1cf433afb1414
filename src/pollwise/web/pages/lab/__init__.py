"""The lab in the browser: a form that says what to compare, and the report of a comparison."""
