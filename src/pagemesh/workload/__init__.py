"""What `pagemesh sim` and `pagemesh bench` share: when requests come, files of chats, limits that good requests keep to,
and how figures are drawn and written.
"""
