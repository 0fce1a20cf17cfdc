"""The project that `fdl init` creates from templates."""
