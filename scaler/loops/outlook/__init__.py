"""What operators are shown of quota and plans: the queues, who waits and why, and what would be suspended for whom.

| module         | question                                                                   |
|----------------|----------------------------------------------------------------------------|
| `inquiry`      | who asks gets what, and when? The only part that reads, waits and refuses  |
| `survey`       | what is it all made from, at one instant?                                  |
| `queues`       | the quota trees                                                            |
| `waiting`      | why does a gang wait?                                                      |
| `pending`      | all that wait                                                              |
| `standing`     | how far is a plan that stands?                                             |
| `holders`      | who holds GPUs that no plan may take, and why?                             |
| `plans`        | what would be suspended for one gang                                       |
"""

from scaler.loops.outlook.inquiry import Inquiry

__all__ = ["Inquiry"]
