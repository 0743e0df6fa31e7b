package message

import "testing"

func TestParseIDReadsWhatStringWrites(t *testing.T) {
	t.Parallel()
	want := ID{0x01, 0x8f, 0xff, 0x00, 0x12, 0x34, 0x70, 0x00, 0x80, 0x00, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	got, err := ParseID(want.String())
	if err != nil || got != want {
		t.Fatalf("ParseID(%q) = %v, %v", want.String(), got, err)
	}
	for _, bad := range []string{"", "018fff00", "018fff00-1234-7000-8000-aabbccddeefg", "018fff0001234-7000-8000-aabbccddeeff"} {
		if _, err := ParseID(bad); err == nil {
			t.Errorf("ParseID(%q) accepted", bad)
		}
	}
}
