"""Files that travel to where SkyRL trains. Nothing of orch imports them; each stands alone."""
