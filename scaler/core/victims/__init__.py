"""The cheapest set of options that is enough, or the knowledge that there is none.

| module    | question                                                          |
|-----------|-------------------------------------------------------------------|
| `options` | what can be taken, in what world, and how long may be searched?   |
| `answers` | what is known so far, and what is the best set?                   |
| `greedy`  | a good set quickly, and what a set does without                   |
| `covers`  | what does it cost at least to cover a need?                       |
| `search`  | the cheapest set, by branch and bound                             |
"""

from scaler.core.victims.options import Found, Ground, Limits, Option
from scaler.core.victims.search import cheapest

__all__ = ["Found", "Ground", "Limits", "Option", "cheapest"]
