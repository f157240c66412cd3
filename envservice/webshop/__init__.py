"""WebShop: a shop of products, shoppers' goals, pages as text, a score at the purchase."""
