"""The audit that can fail a run: is what was recorded what was sampled, and is all of it there?"""
