"""Will it fit, how fast, which layout: plans judged before anything is trained."""
