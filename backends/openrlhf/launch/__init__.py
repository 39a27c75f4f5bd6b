"""Files that travel to where OpenRLHF trains. Nothing of orch imports them; each stands alone."""
