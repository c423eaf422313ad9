# Numbers the lines of each connection, in a process of its own.
use strict;
use warnings;
use IO::Socket::IP;
use Socket qw(SOCK_STREAM);

$SIG{CHLD} = 'IGNORE';
my $listener = IO::Socket::IP->new(LocalHost => '::', LocalPort => 7000, Listen => 16, ReuseAddr => 1, Type => SOCK_STREAM) or die $@;
while (my $client = $listener->accept) {
    next if fork;
    $client->autoflush(1);
    my $n = 0;
    while (<$client>) {
        $n++;
        print $client "$n $_";
    }
    exit;
}
