package verify

import "testing"

func TestWhatAQueueGets(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		binding  Binding
		position string
		want     bool
	}{
		"the routing key itself": {
			Binding{"shop", "orders.events"},
			"shop/orders.events#t1-1.7",
			true,
		},
		"another exchange": {
			Binding{"other", "orders.events"},
			"shop/orders.events#t1-1.7",
			false,
		},
		"a star is one word":      {Binding{"shop", "orders.*"}, "shop/orders.eu#t1-1.7", true},
		"a star is not two words": {Binding{"shop", "orders.*"}, "shop/orders.eu.paid#t1-1.7", false},
		"a star is not none":      {Binding{"shop", "orders.*"}, "shop/orders#t1-1.7", false},
		"a hash is two words":     {Binding{"shop", "orders.#"}, "shop/orders.eu.paid#t1-1.7", true},
		"a hash is none":          {Binding{"shop", "orders.#"}, "shop/orders#t1-1.7", true},
		"a hash in the middle": {
			Binding{"shop", "orders.#.paid"},
			"shop/orders.eu.de.paid#t1-1.7",
			true,
		},
		"a hash in the middle that ends otherwise": {
			Binding{"shop", "orders.#.paid"},
			"shop/orders.eu.de#t1-1.7",
			false,
		},
		"a hash alone is everything": {Binding{"shop", "#"}, "shop/a.b.c#t1-1.7", true},
		"words are compared whole":   {Binding{"shop", "order"}, "shop/orders#t1-1.7", false},
		"a place at another broker":  {Binding{"shop", "#"}, "ORDERS@17", false},
		"a message that expired":     {Binding{"shop", "#"}, "expired", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := gets([]Binding{{"none", "none"}, tc.binding}, tc.position); got != tc.want {
				t.Errorf("gets(%v, %q) = %v, want %v", tc.binding, tc.position, got, tc.want)
			}
		})
	}
}
