"""dsec.integrations: isolated environments in the form that other libraries want them in.

Owns nothing itself: `sb3`, `torchrl` and `trl` are imported one by one, so that nobody needs a
library that he doesn't use. What of it runs in runners (`monitor`, `tools`) imports none of them
as a whole.
"""
